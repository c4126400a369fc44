# SPDX-License-Identifier: MIT
"""oneDNN's products are torch's, large ones only, and nobody else notices."""

import threading

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from deepdive import products
from deepdive.configs import GptConfig
from deepdive.models.gpt import Gpt
from deepdive.objectives import causal_lm, next_tokens, projected_cross_entropy
from deepdive.products import FastProducts, fast_products
from deepdive.training import adamw, fit
from deepdive.training import update as update_file

pytestmark = pytest.mark.skipif(
    not products.has_onednn(), reason="torch has no oneDNN product here"
)
OP = products.onednn_linear
ROWS, WIDE = 1024, 256  # just large enough


@pytest.fixture
def seen(monkeypatch):
    """The shapes that go to oneDNN, as they come."""
    products.has_onednn()  # multiplies once
    shapes = []

    def spy(x, weight, bias=None):
        shapes.append((*x.shape, len(weight)))
        return OP(x, weight, bias)

    monkeypatch.setattr(products, "onednn_linear", spy)
    return shapes


@pytest.fixture
def small(monkeypatch):
    """Every product counts as large."""
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(products, "SIDE", 1)


@pytest.fixture
def held_back(monkeypatch):
    monkeypatch.setattr(products, "held_back", lambda: True)


def tensors(*shapes, grad=True, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(s, dtype=dtype, requires_grad=grad) for s in shapes]


def large(bias=True):
    x, weight, b = tensors((4, ROWS // 4, WIDE), (WIDE, WIDE), (WIDE,))
    return [x, weight, b] if bias else [x, weight]


def gradients(inputs, fast, times=F.linear):
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    with FastProducts() if fast else torch.enable_grad():
        y = times(*inputs)
        return y, torch.autograd.grad((y * y.detach().cos()).sum(), wanted)


def close(these, those):
    for a, b in zip(these, those, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert (a - b).abs().max() <= 1e-5 * b.abs().max() + 1e-6


# Its numbers


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(seen, bias):
    (y, grads), (y0, grads0) = (gradients(large(bias), fast) for fast in (True, False))
    assert len(seen) == 2  # y and dx; dW has as many inputs as outputs
    close([y, *grads], [y0, *grads0])


LAYOUTS = {
    "as it is": lambda t: t,
    "turned": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "a slice": lambda t: F.pad(t, (3, 2))[..., 3:-2],
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "one number": lambda t: t.flatten()[0].expand(t.shape),
}
layouts = st.sampled_from(sorted(LAYOUTS))


@given(
    st.lists(st.integers(1, 5), max_size=3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.tuples(layouts, layouts, layouts, st.booleans()),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_shape_and_layout(rows, width, out, how):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "LEAST", 1)
        patch.setattr(products, "SIDE", 1)
        leaves = tensors((*rows, width), (out, width), (out,))[: 2 + how[-1]]

        def times(*leaves):
            laid = [LAYOUTS[how[i]](t) for i, t in enumerate(leaves)]
            return F.linear(*laid)

        (y, grads), (y0, grads0) = (gradients(leaves, f, times) for f in (True, False))
    close([y, *grads], [y0, *grads0])


@pytest.mark.parametrize(("width", "out", "calls"), [(9, 4, 3), (4, 9, 2), (5, 5, 2)])
def test_a_weights_gradient_is_onednns_where_it_narrows(small, seen, width, out, calls):
    gradients(tensors((6, width), (out, width)), True)
    assert len(seen) == calls


def test_by_name(small, seen):
    x, weight, b = tensors((6, 3), (4, 3), (4,))
    with FastProducts():
        y = F.linear(weight=weight, bias=b, input=x)
        z = nn.functional.linear(x, weight=weight, bias=None)
    close([y, z], [F.linear(x, weight, b), F.linear(x, weight)])
    assert len(seen) == 2


def test_gradients_of_gradients(small, seen):
    def second(fast):
        x, weight, b = tensors((6, 5), (4, 5), (4,))
        with FastProducts() if fast else torch.enable_grad():
            y = F.linear(x, weight, b)
            first = torch.autograd.grad(y.pow(3).sum(), [x, weight], create_graph=True)
            total = sum(g.pow(2).sum() for g in first)
            return torch.autograd.grad(total, [x, weight, b])

    close(second(True), second(False))
    assert seen


def test_gradients_are_those_of_differences():
    """In float64, where oneDNN has no product: the formulas, with torch's."""
    inputs = tensors((3, 2, 5), (4, 5), (4,), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "onednn_linear", F.linear)
        assert torch.autograd.gradcheck(products._linear, inputs)
        assert torch.autograd.gradgradcheck(products._linear, inputs)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_what_is_frozen_gets_no_gradient_and_costs_nothing(small, seen, frozen):
    def inputs():
        made = tensors((6, 9), (4, 9), (4,))
        for i in frozen:
            made[i].requires_grad_(False)
        return made

    (y, grads), (y0, grads0) = (gradients(inputs(), fast) for fast in (True, False))
    close([y, *grads], [y0, *grads0])
    assert len(seen) == 1 + (0 not in frozen) + (1 not in frozen)


def test_nothing_is_kept_that_no_gradient_needs(small):
    x, weight = tensors((6, 5), (4, 5))
    kept = []
    with (
        FastProducts(),
        torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t),
    ):
        F.linear(x.detach(), weight)
        F.linear(x, weight.detach())
    assert [t.shape for t in kept] == [x.shape, weight.t().shape]


def test_without_gradients(small, seen):
    x, weight, b = tensors((6, 5), (4, 5), (4,))
    for context in (torch.no_grad, torch.inference_mode):
        with FastProducts(), context():
            y = F.linear(x, weight, b)
        assert not y.requires_grad
        close([y], [F.linear(x, weight, b).detach()])
    assert len(seen) == 2


def test_tied_weights_add_their_gradients(small, seen):
    def shared(fast):
        torch.manual_seed(0)
        layer = nn.Linear(6, 6)
        with FastProducts() if fast else torch.enable_grad():
            layer(layer(torch.ones(3, 6)).relu_()).pow(2).sum().backward()
        return layer.weight.grad, layer.bias.grad

    close(shared(True), shared(False))
    assert seen


def test_through_a_checkpoint(small, seen):
    """`Tensor.backward` leaves the mode: it is computed anew with torch's products."""

    def again(fast, reentrant):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 4))
        (x,) = tensors((6, 5))
        with FastProducts() if fast else torch.enable_grad():
            checkpoint(layers, x, use_reentrant=reentrant).pow(2).sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    for reentrant in (True, False):
        close(again(True, reentrant), again(False, reentrant))
    assert seen


# What it leaves alone


def untouched(seen, *inputs):
    """Torch's own bits, and no call of oneDNN."""
    with FastProducts():
        y = F.linear(*inputs)
    assert torch.equal(y, F.linear(*inputs)) and y.dtype == F.linear(*inputs).dtype
    assert not seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(seen, dtype):
    untouched(seen, *(t.to(dtype) for t in large()))


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((ROWS - 1, WIDE), (WIDE, WIDE)),  # too little work
        ((4 * ROWS, WIDE - 1), (WIDE, WIDE - 1)),  # too narrow
        ((4 * ROWS, WIDE), (WIDE - 1, WIDE)),
        ((WIDE,), (WIDE, WIDE)),
        ((0, WIDE), (WIDE, WIDE)),
        ((WIDE,), (WIDE,)),
    ],
)
def test_small_or_odd_shapes(seen, x, weight):
    untouched(seen, *tensors(x, weight))


def test_autocast(seen):
    inputs = large()
    with FastProducts(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.linear(*inputs).dtype == torch.bfloat16
    assert not seen


def test_transforms(small, seen):
    x, weight = tensors((3, 6, 5), (4, 5), grad=False)

    def total(x, weight):
        return F.linear(x, weight).pow(2).sum()

    with FastProducts():
        assert F.linear(x, weight).shape == (3, 6, 4)
        seen.clear()
        y = torch.vmap(F.linear, (0, None))(x, weight)
        grad = torch.func.grad(total, 1)(x, weight)
        _, slope = torch.func.jvp(total, (x, weight), (x, weight))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(weight, weight)
            tangent = forward_ad.unpack_dual(F.linear(x, dual)).tangent
    assert not seen
    close([y, tangent], [F.linear(x, weight)] * 2)
    close([slope], [4 * total(x, weight)])
    assert grad.shape == weight.shape


class Marked(Tensor):
    pass


def test_subclasses_other_devices_and_layouts(small, seen):
    x, weight = tensors((6, 5), (4, 5), grad=False)
    with FastProducts():
        assert type(F.linear(x.as_subclass(Marked), weight)) is Marked
        assert type(F.linear(x, weight.as_subclass(Marked))) is Marked
        assert F.linear(x.to("meta"), weight.to("meta")).is_meta
        assert F.linear(x.to_sparse(), weight).shape == (6, 4)
    assert not seen


def test_compiled(small, seen):
    compiled = torch.compile(nn.Linear(5, 4), backend="aot_eager")
    x = torch.ones(6, 5)
    with FastProducts():
        y = compiled(x)
        y.sum().backward()
    assert not seen
    close([y], [compiled(x)])


def test_switched_off_by_the_user(small, seen):
    x, weight = tensors((6, 5), (4, 5))
    with FastProducts(), torch.backends.mkldnn.flags(enabled=False):
        F.linear(x, weight)
    assert not seen


def test_where_torch_has_it_not(small, monkeypatch):
    x, weight = tensors((6, 5), (4, 5))
    products.has_onednn.cache_clear()

    def absent(*_):
        raise AttributeError("'_OpNamespace' object has no such attribute")

    monkeypatch.setattr(products, "onednn_linear", absent)
    try:
        assert not products.has_onednn()
        with FastProducts():
            assert torch.equal(F.linear(x, weight), F.linear(x, weight))
    finally:
        products.has_onednn.cache_clear()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: F.linear(torch.ones(6, 5), torch.ones(4, 3)),
        lambda: F.linear(torch.ones(6, 5), torch.ones(4, 5), torch.ones(3)),
        lambda: F.linear(torch.ones(6, 5), torch.ones(4, 5).long()),
    ],
)
def test_errors_are_those_of_torch(small, wrong):
    with pytest.raises(RuntimeError) as plain:
        wrong()
    with FastProducts(), pytest.raises(RuntimeError) as fast:
        wrong()
    assert str(fast.value) == str(plain.value)


# Where it holds


def test_outside_all_is_as_before(small, seen):
    x, weight = tensors((6, 5), (4, 5))
    with pytest.raises(KeyError), FastProducts():
        raise KeyError
    F.linear(x, weight)
    assert not seen


def test_within_itself(small, seen):
    x, weight = tensors((6, 5), (4, 5))
    mode = FastProducts()
    with mode, mode:
        F.linear(x, weight)
    with mode:
        F.linear(x, weight)
    F.linear(x, weight)
    assert len(seen) == 2


def test_only_in_its_thread(small, seen):
    x, weight = tensors((6, 5), (4, 5))
    with FastProducts():
        other = threading.Thread(target=F.linear, args=(x, weight))
        other.start()
        other.join()
    assert not seen


# For a model


def chosen(model, batch):
    return type(fast_products(model)(batch)) is FastProducts


def test_for_wide_models_and_large_batches(held_back):
    model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256), nn.Linear(8, 8))
    rows = ROWS // 4
    for one in (torch.ones(rows), torch.ones(2, rows // 2)):
        for batch in (one, (torch.ones(1), one), [{"x": one}], {"x": one, "n": 3}):
            assert chosen(model, batch)
    for batch in (torch.ones(rows - 1), (), None, "text", torch.ones(rows // 2, 1)):
        assert not chosen(model, batch)
    assert chosen(nn.Sequential(model, nn.Linear(256, 256)), torch.ones(ROWS))
    assert not chosen(nn.Sequential(model, nn.Linear(256, 256)), torch.ones(ROWS - 1))
    assert not chosen(nn.Linear(128, 8192), torch.ones(8 * ROWS))
    assert not chosen(model.double(), torch.ones(rows))


def test_only_where_the_processor_has_more(monkeypatch):
    model, batch = nn.Linear(WIDE, WIDE), torch.ones(ROWS)
    for maker, instructions, there, expected in (
        ("vendor_id : AuthenticAMD", "AVX512", True, True),
        ("AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD", "AVX512", True, True),
        ("vendor_id : GenuineIntel", "AVX512", True, False),
        ("vendor_id : AuthenticAMD", "AVX2", True, False),
        ("vendor_id : AuthenticAMD", "AVX512", False, False),
        ("arm", "DEFAULT", True, False),
    ):
        products.held_back.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(products, "_vendor", lambda maker=maker: maker)
            cpu = "get_cpu_capability"
            patch.setattr(torch.backends.cpu, cpu, lambda now=instructions: now)
            patch.setattr(products, "has_onednn", lambda there=there: there)
            assert products.held_back() is expected
            assert chosen(model, batch) is expected
        products.held_back.cache_clear()


def trained(d_model, fast, monkeypatch, **how):
    torch.manual_seed(0)
    config = GptConfig(
        300, max_seq_len=64, d_model=d_model, n_layers=1, n_heads=2, d_ff=2 * d_model
    )
    model, tokens = Gpt(config), torch.randint(300, (16, 64))
    with monkeypatch.context() as patch:
        patch.setattr(products, "held_back", lambda: fast)
        records = fit(
            model,
            lambda i: tokens,
            lambda model, batch: causal_lm(model(batch), batch),
            adamw(model, 1e-3, 0.01),
            steps=3,
            progress=False,
            **how,
        )
    return [r["loss"] for r in records], dict(model.named_parameters())


def test_training_a_wide_model_gives_the_same_losses(seen, monkeypatch):
    (losses, _), (plain, _) = (
        trained(WIDE, fast, monkeypatch) for fast in (True, False)
    )
    assert len(seen) == 3 * (7 * 2 + 1)  # of a step: y and dx; and dW of `down`
    assert losses == pytest.approx(plain, rel=1e-5)
    again, _ = trained(WIDE, True, monkeypatch)
    assert again == losses  # to the last bit


def test_training_a_narrow_model_is_what_it_was(seen, monkeypatch):
    (losses, weights), (plain, others) = (
        trained(128, fast, monkeypatch) for fast in (True, False)
    )
    assert not seen
    assert losses == plain
    assert all(torch.equal(w, others[name]) for name, w in weights.items())


def test_training_in_low_precision_is_what_it_was(seen, monkeypatch):
    how = {"precision": torch.bfloat16}
    losses, plain = (trained(WIDE, f, monkeypatch, **how)[0] for f in (True, False))
    assert losses == plain
    assert not seen


def test_training_leaves_no_mode_behind(seen, monkeypatch):
    def wrong(model, batch):
        raise KeyError("a loss that fails")

    monkeypatch.setattr(
        update_file, "fast_products", lambda m: lambda b: FastProducts()
    )
    model = nn.Linear(WIDE, WIDE)
    with pytest.raises(KeyError, match="a loss that fails"):
        fit(model, lambda i: torch.ones(ROWS), wrong, adamw(model, 1.0, 0.0), steps=1)
    F.linear(*large())
    assert not seen


def test_the_loss_without_logits_is_asked_too(seen, monkeypatch):
    hidden, weight = tensors((2, 512, WIDE), (2048, WIDE))
    labels = next_tokens(torch.randint(2048, (2, 512)))

    def loss():
        total = projected_cross_entropy(hidden, weight, labels).total
        return total, *torch.autograd.grad(total, [hidden, weight])

    with FastProducts():
        fast = loss()
    assert seen == [(1024, WIDE, 2048), (1024, 2048, WIDE)]
    close(fast, loss())
