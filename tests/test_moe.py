# SPDX-License-Identifier: MIT
"""Routers, experts and balance: against `transformers`, against loops, and by law."""

import copy
import pickle
from statistics import NormalDist

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DeepseekV2Config, DeepseekV3Config, MixtralConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import (
    MixtralSparseMoeBlock,
    load_balancing_loss_func,
)

from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.inference.experts import PackedExperts, can_pack, packable
from deepdive.moe import (
    Capped,
    Experts,
    Groups,
    MixtureOfExperts,
    NoisyTopKRouter,
    Routing,
    SigmoidRouter,
    SoftmaxTopKRouter,
    SwitchRouter,
    TwoLayerExperts,
    dense_gates,
    drop_overflow,
    expert_counts,
    importance_loss,
    load_loss,
    record_routing,
    router_z_loss,
    sequence_balance_loss,
    switch_balance_loss,
)
from deepdive.moe.experts import ExpertStack
from deepdive.moe.noisy import chance_of_choice
from deepdive.moe.sorted import SortedExperts
from tests.compare import close
from tests.wide_reference import wide

D, D_EXPERT = 12, 10
LOSSES = [importance_loss, load_loss, switch_balance_loss, router_z_loss]
ROUTERS = {
    "noisy": NoisyTopKRouter,
    "softmax": SoftmaxTopKRouter,
    "sigmoid": SigmoidRouter,
}


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def given_routing(experts, n_experts, gates=None):
    """A routing made by hand, uniform probabilities beside it."""
    experts = torch.tensor(experts)
    N, K = experts.shape
    gates = torch.full((N, K), 1.0 / K) if gates is None else torch.tensor(gates)
    logits = torch.zeros(N, n_experts)
    return Routing(experts, gates, logits, logits.softmax(-1))


def mixture(router, kind=Experts, **how):
    experts = kind(router.n_experts, router.d_model, D_EXPERT)
    return MixtureOfExperts(router, experts, **how).double()


# ── Against transformers ─────────────────────────────────────────────────────────────


def copy_experts(ours, theirs):
    """The reference stacks gate and up along axis 1."""
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.3)
        gate, up = theirs.gate_up_proj.chunk(2, dim=1)
        ours.gate.copy_(gate), ours.up.copy_(up), ours.down.copy_(theirs.down_proj)


def copy_shared(ours, theirs):
    ours.gate, ours.up, ours.down = theirs.gate_proj, theirs.up_proj, theirs.down_proj


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n_experts", "top_k"), [(8, 2), (5, 5), (4, 1)])
def test_mixtral(seed, n_experts, top_k):
    torch.manual_seed(seed)
    config = MixtralConfig(
        hidden_size=D,
        intermediate_size=D_EXPERT,
        num_local_experts=n_experts,
        num_experts_per_tok=top_k,
    )
    theirs = MixtralSparseMoeBlock(config).double()
    ours = mixture(SoftmaxTopKRouter(D, n_experts, top_k))
    copy_experts(ours.experts, theirs.experts)
    theirs.gate.weight = nn.Parameter(rows(n_experts, D))
    ours.router.weight = theirs.gate.weight
    x = rows(2, 7, D)
    with wide(theirs):
        expected = theirs(x)
    close(ours(x), expected, 1e-9)

    # The experts alone, with one and the same routing: to the last digits, and so are
    # the gradients.
    routing = ours.router(x.flatten(0, 1).detach())
    x = rows(14, D).requires_grad_()
    out = theirs.experts(x, routing.experts, routing.gates)
    close(ours.experts(x, routing), out)
    ours.zero_grad(), theirs.zero_grad()
    weight = rows(14, D)
    (ours.experts(x, routing) * weight).sum().backward(retain_graph=True)
    (out * weight).sum().backward()
    grads = torch.cat([ours.experts.gate.grad, ours.experts.up.grad], 1)
    close(grads, theirs.experts.gate_up_proj.grad)
    close(ours.experts.down.grad, theirs.experts.down_proj.grad)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [None, Groups(4, 2), Groups(2, 1), Groups(12, 6)])
def test_deepseek_v2(seed, groups):
    torch.manual_seed(seed)
    config = DeepseekV2Config(
        hidden_size=D,
        num_attention_heads=2,
        num_key_value_heads=2,
        moe_intermediate_size=D_EXPERT,
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_shared_experts=2,
        routed_scaling_factor=16.0,
        topk_method="group_limited_greedy" if groups else "greedy",
        n_group=groups.n_groups if groups else None,
        topk_group=groups.top_groups if groups else None,
    )
    theirs = DeepseekV2Moe(config).double()
    router = SoftmaxTopKRouter(D, 12, 3, False, 16.0, groups)
    ours = mixture(router, shared=GatedFeedForward(D, 2 * D_EXPERT, nn.SiLU()))
    copy_experts(ours.experts, theirs.experts)
    copy_shared(ours.shared, theirs.shared_experts)
    theirs.gate.weight = nn.Parameter(rows(12, D))
    ours.router.weight = theirs.gate.weight
    x = rows(2, 9, D)
    with wide(theirs):
        expected = theirs(x)
    close(ours(x), expected, 1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("groups", [Groups(1, 1, 2), Groups(4, 2, 2), Groups(3, 1, 2)])
@pytest.mark.parametrize("bias", [0.1, -5.0])
def test_deepseek_v3(seed, normalise, groups, bias):
    """At a bias of about −5 all biased scores are negative: closed groups need −∞."""
    torch.manual_seed(seed)
    config = DeepseekV3Config(
        hidden_size=D,
        moe_intermediate_size=D_EXPERT,
        n_routed_experts=12,
        num_experts_per_tok=4,
        n_shared_experts=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=normalise,
        n_group=groups.n_groups,
        topk_group=groups.top_groups,
    )
    theirs = DeepseekV3MoE(config).double()
    ours = mixture(
        SigmoidRouter(D, 12, 4, normalise, 2.5, groups),
        shared=GatedFeedForward(D, D_EXPERT, nn.SiLU()),
    )
    copy_experts(ours.experts, theirs.experts)
    copy_shared(ours.shared, theirs.shared_experts)
    theirs.gate.weight = nn.Parameter(rows(12, D))
    ours.router.weight = theirs.gate.weight
    theirs.gate.e_score_correction_bias.copy_(bias * torch.rand(12))
    ours.router.selection_bias.copy_(theirs.gate.e_score_correction_bias)
    x = rows(2, 9, D)
    with wide(theirs):
        expected = theirs(x)
    close(ours(x), expected, 1e-9)


def test_switch_loss_is_theirs_over_k():
    torch.manual_seed(0)
    routing = SoftmaxTopKRouter(D, 6, 2).double()(rows(30, D))
    theirs = load_balancing_loss_func((routing.logits,), num_experts=6, top_k=2)
    close(2 * switch_balance_loss(routing), theirs.double(), 1e-6)


# ── The two forms of the experts ─────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 7), st.data(), st.integers(0, 10**6)
)  # N, E, K, seed
def test_fast_is_dense(N, E, data, seed):
    """Values and all gradients, experts without tokens and dropped choices included."""
    K = data.draw(st.integers(1, E))
    kind = data.draw(st.sampled_from([Experts, TwoLayerExperts]))
    factor = data.draw(st.sampled_from([0.3, 1.0, 100.0]))
    torch.manual_seed(seed)
    router = Capped(SoftmaxTopKRouter(5, E, K), factor).double()
    experts = kind(E, 5, 3).double()
    x = rows(N, 5).requires_grad_()
    results = []
    for form in (experts, experts.dense):
        out = form(x, router(x))
        inputs = [x, router.router.weight, *experts.parameters()]
        grads = torch.autograd.grad(out.square().sum(), inputs)
        results.append((out, *grads))
    for fast, dense in zip(*results, strict=True):
        close(fast, dense)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 90), st.integers(1, 7), st.data(), st.integers(0, 10**6))
def test_small_and_large_blocks_are_dense(N, E, data, seed):
    """In float32 few rows are multiplied in one call, many block by block."""
    K = data.draw(st.integers(1, E))
    kind = data.draw(st.sampled_from([Experts, TwoLayerExperts]))
    act = data.draw(st.sampled_from([nn.SiLU(), nn.ReLU(), nn.GELU("tanh"), nn.GELU()]))
    factor = data.draw(st.sampled_from([0.3, 1.0, 100.0]))
    torch.manual_seed(seed)
    router = Capped(SoftmaxTopKRouter(8, E, K), factor)
    experts = kind(E, 8, 4, act)
    x = torch.randn(N, 8, requires_grad=True)
    results = []
    for form in (experts, experts.dense):
        out = form(x, router(x))
        inputs = [x, router.router.weight, *experts.parameters()]
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for fast, dense in zip(*results, strict=True):
        close(fast, dense, 2e-5 * max(1.0, float(dense.detach().abs().sum()) / 10))


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU(), nn.GELU("tanh")])
def test_the_backward_pass_is_the_derivative(readers, activation):
    torch.manual_seed(0)
    sizes, token = [2, 0, 3], torch.tensor([0, 2, 0, 1, 3])
    x, gates, down = rows(5, 3), rows(5, 1), rows(3, 3, 2)
    tensors = [x, gates, down, *(rows(3, 2, 3) for _ in range(readers))]
    tensors = [t.requires_grad_() for t in tensors]

    def mix(*tensors):
        return SortedExperts.apply(activation, sizes, token, *tensors)

    assert torch.autograd.gradcheck(mix, tensors)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(mix(*tensors).sum(), x, create_graph=True)


@pytest.mark.parametrize("what", ["frozen", "hooked", "learned", "another expert"])
def test_where_the_fast_way_cannot_go_autograd_does(what):
    torch.manual_seed(0)
    activation = nn.PReLU() if what == "learned" else nn.SiLU()

    class Doubled(Experts):
        def expert(self, x, *matrices):
            return 2 * super().expert(x, *matrices)

    kind = Doubled if what == "another expert" else Experts
    experts = kind(4, D, D_EXPERT, activation).double()
    if what == "frozen":
        experts.down.requires_grad_(False)
    if what == "hooked":
        activation.register_forward_hook(lambda module, inputs, out: 3 * out)
    router = SoftmaxTopKRouter(D, 4, 2).double()
    x = rows(9, D).requires_grad_()
    wanted = [x, *(p for p in experts.parameters() if p.requires_grad)]
    results = []
    for form in (experts, experts.dense):
        out = form(x, router(x))
        results.append((out, *torch.autograd.grad(out.square().sum(), wanted)))
    for fast, dense in zip(*results, strict=True):
        close(fast, dense)


def test_packed_experts_read_the_same():
    if not can_pack():
        pytest.skip("torch has no packed products here")
    torch.manual_seed(0)
    experts, router = Experts(6, 16, 12), Capped(SoftmaxTopKRouter(16, 6, 2), 0.9)
    packed = PackedExperts(experts)
    for N in (0, 1, 5, 60):
        x = torch.randn(N, 16)
        routing = router(x)
        with torch.no_grad():
            want = experts.dense(x, routing)
            close(packed(x, routing), want, 1e-6)
            close(copy.deepcopy(packed)(x, routing), want, 1e-6)
            close(pickle.loads(pickle.dumps(packed))(x, routing), want, 1e-6)
    packed(x, routing).sum().backward()
    assert experts.gate.grad is not None  # shared, and with gradients read plainly
    assert packable(experts) and not packable(TwoLayerExperts(6, 16, 12))
    with pytest.raises(TypeError, match="TwoLayerExperts"):
        PackedExperts(TwoLayerExperts(6, 16, 12))
    with pytest.raises(TypeError, match="float64"):
        PackedExperts(experts.double())


def test_backward_makes_no_stack_of_gradients_per_expert():
    E = 16
    experts = Experts(E, 6, 4)
    router = SoftmaxTopKRouter(6, E, 4)
    x = torch.randn(64, 6)
    loss = experts(x, router(x)).sum()
    stacks = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dim() == 3 and out.shape[0] == E:
                stacks.append(func)
            return out

    with Watch():
        loss.backward()
    assert 3 <= len(stacks) <= 9, stacks  # three matrices, not 3 · 16


def test_experts_without_tokens_get_zero_gradients():
    experts = Experts(4, 6, 4)
    experts(torch.randn(2, 6), given_routing([[1], [1]], 4)).sum().backward()
    for p in experts.parameters():
        assert p.grad[1].abs().sum() > 0 and p.grad[[0, 2, 3]].abs().sum() == 0


# ── Laws ─────────────────────────────────────────────────────────────────────────────


def feedforward_of(experts, e):
    """Expert e as the plain layer it is."""
    gated = isinstance(experts, Experts)
    if gated:
        layer = GatedFeedForward(D, D_EXPERT, experts.activation).double()
        layer.gate.weight.data = experts.gate[e].data
    else:
        layer = FeedForward(D, D_EXPERT, experts.activation, bias=False).double()
    layer.up.weight.data, layer.down.weight.data = experts.up[e], experts.down[e]
    return layer


@pytest.mark.parametrize("kind", [Experts, TwoLayerExperts])
@pytest.mark.parametrize("make", ROUTERS.values())
def test_one_expert_is_its_feedforward(kind, make):
    layer = mixture(make(D, 1, 1), kind)
    x = rows(2, 3, D)
    close(layer(x), feedforward_of(layer.experts, 0)(x))


@pytest.mark.parametrize("normalise", [False, True])
def test_all_chosen_is_the_softmax_mixture(normalise):
    layer = mixture(SoftmaxTopKRouter(D, 5, 5, normalise))
    x = rows(2, 3, D)
    weights = (x @ layer.router.weight.T).softmax(-1)
    outputs = [feedforward_of(layer.experts, e)(x) for e in range(5)]
    want = sum(weights[..., e, None] * out for e, out in enumerate(outputs))
    close(layer(x), want)


def test_shared_experts_stand_outside_the_softmax():
    shared = GatedFeedForward(D, 2 * D_EXPERT, nn.SiLU())
    layer = mixture(SoftmaxTopKRouter(D, 4, 2), shared=shared)
    x = rows(1, 6, D)
    routed = MixtureOfExperts(layer.router, layer.experts)(x)
    close(layer(x), routed + shared(x))
    nn.init.zeros_(layer.experts.down)
    close(layer(x), shared(x))  # shared only

    # Two shared experts are one of twice the width.
    halves = []
    for cut in (slice(0, D_EXPERT), slice(D_EXPERT, None)):
        half = GatedFeedForward(D, D_EXPERT, nn.SiLU()).double()
        half.gate.weight.data = shared.gate.weight[cut]
        half.up.weight.data = shared.up.weight[cut]
        half.down.weight.data = shared.down.weight[:, cut]
        halves.append(half)
    close(shared(x), halves[0](x) + halves[1](x))


@pytest.mark.parametrize("make", ROUTERS.values())
def test_tokens_do_not_see_each_other(make):
    torch.manual_seed(3)
    layer = mixture(make(D, 6, 2)).eval()
    if make is NoisyTopKRouter:
        nn.init.normal_(layer.router.weight)
    x = rows(1, 9, D)
    order = torch.randperm(9)
    close(layer(x[:, order]), layer(x)[:, order])
    close(layer(x[:, :1]), layer(x)[:, :1])


def test_normalised_gates_are_a_softmax_over_the_chosen():
    router = SoftmaxTopKRouter(D, 6, 3).double()
    routing = router(rows(20, D))
    kept = routing.probabilities.gather(1, routing.experts)
    close(routing.gates, kept / kept.sum(-1, keepdim=True))
    close(routing.gates.sum(-1), torch.ones(20).double())


def test_deepseek_gates_are_not_renormalised():
    """Case B31, with the numbers of the DeepSeekMoE paper's equation."""
    x = torch.tensor([[2.0, 1, 0, -1]])
    for normalise, want in ((False, [0.6439, 0.2369, 0, 0]), (True, [0.7311, 0.2689])):
        router = SoftmaxTopKRouter(4, 4, 2, normalise)
        router.weight.data = torch.eye(4)
        want = [[*want, 0, 0][:4]]
        close(dense_gates(router(x)), want, 5e-5)


def test_a_group_is_scored_by_its_best_experts():
    scores = torch.tensor([[0.9, 0.0, 0.5, 0.6], [0.1, 0.2, 0.3, -0.1]])
    assert Groups(2, 1, 1).reachable(scores)[:, 0].tolist() == [True, False]
    assert Groups(2, 1, 2).reachable(scores)[:, 0].tolist() == [False, True]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_token_stays_within_its_groups(n_groups, size, data):
    top_groups = data.draw(st.integers(1, n_groups))
    top_k = data.draw(st.integers(1, top_groups * size))
    groups = Groups(n_groups, top_groups, data.draw(st.integers(1, 3)))
    for make in (SoftmaxTopKRouter, SigmoidRouter):
        router = make(5, n_groups * size, top_k, groups=groups)
        if make is SigmoidRouter:
            router.selection_bias -= 3  # all scores negative
        for experts in router(torch.randn(8, 5)).experts.tolist():
            assert len(set(experts)) == top_k
            assert len({e // size for e in experts}) <= top_groups


# ── 2017: noise and its two losses ───────────────────────────────────────────────────


@pytest.mark.parametrize(("E", "K"), [(4, 2), (1, 1), (4, 4)])
@pytest.mark.parametrize("training", [True, False])
def test_a_fresh_noisy_router_is_finite(E, K, training):
    """Case B27: all logits tie; in evaluation there is no noise to divide by."""
    layer = mixture(NoisyTopKRouter(8, E, K), TwoLayerExperts).train(training)
    x = rows(2, 3, 8)
    with record_routing(layer) as seen:
        out = layer(x)
    losses = torch.stack([loss(seen[""]) for loss in LOSSES])
    assert out.isfinite().all() and losses.isfinite().all()
    if K == E:
        close(losses[1], torch.zeros(()).double())
    losses.sum().backward()
    for p in layer.router.parameters():
        assert p.grad is None or p.grad.isfinite().all()
    if not training:
        assert torch.equal(out, layer(x))
        close(seen[""].gates, torch.full((6, K), 1 / K).double())
        counts = expert_counts(seen[""]).double()
        want = counts.var(correction=0) / counts.mean() ** 2
        close(load_loss(seen[""]), want)


def test_chances_are_those_of_the_paper():
    """Equation 9 written as a loop over tokens and experts."""
    torch.manual_seed(0)
    clean, scale = rows(5, 6), rows(5, 6).exp()
    noisy = clean + rows(5, 6) * scale
    for K in range(1, 6):
        want = torch.zeros(5, 6)
        for n in range(5):
            for i in range(6):
                others = sorted(noisy[n].tolist()[:i] + noisy[n].tolist()[i + 1 :])
                z = (clean[n, i] - others[-K]) / scale[n, i]
                want[n, i] = NormalDist().cdf(z.item())
        close(chance_of_choice(clean, noisy, scale, K).float(), want, 1e-6)


def test_chances_are_how_often_an_expert_is_chosen():
    """Summed over experts and averaged over noise they make K; each is a frequency."""
    torch.manual_seed(0)
    router = NoisyTopKRouter(4, 5, 2)
    nn.init.normal_(router.weight), nn.init.normal_(router.noise)
    routing = router(torch.randn(1, 4).expand(20_000, 4))
    often = expert_counts(routing) / 20_000
    close(routing.chances.mean(0), often, 0.012)


def test_noise_is_drawn_in_training_only():
    router = NoisyTopKRouter(8, 6, 2)
    x = torch.randn(50, 8)
    assert not torch.equal(router(x).experts, router(x).experts)
    spread = router(x.repeat(200, 1)).logits.std()
    close(spread.detach(), torch.tensor(2.0).log(), 0.01)  # softplus(0)
    router.eval()
    assert torch.equal(router(x).logits, torch.zeros(50, 6))


def test_importance_by_hand():
    routing = given_routing([[0, 1], [0, 2]], 4, [[0.75, 0.25], [0.5, 0.5]])
    shares = torch.tensor([1.25, 0.25, 0.5, 0.0])
    close(importance_loss(routing), shares.var(correction=0) / 0.25, 1e-7)


def test_balance_losses_move_load_toward_uniform():
    """Shazeer's Table 6 in small: with either loss the load evens out."""
    for loss in (importance_loss, load_loss, switch_balance_loss):
        torch.manual_seed(0)
        router = NoisyTopKRouter(8, 6, 2)
        nn.init.normal_(router.weight)
        x = torch.randn(256, 8) + 1.0
        before = load_loss(router.eval()(x)).item()
        optimiser = torch.optim.Adam(router.parameters(), 0.03)
        router.train()
        for _ in range(80):
            optimiser.zero_grad()
            loss(router(x)).backward()
            optimiser.step()
        after = load_loss(router.eval()(x)).item()
        assert after < before / 4, (loss.__name__, before, after)


# ── Balance ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("K", [1, 2])
def test_losses_at_uniform_and_at_collapse(K):
    E = 4
    even = given_routing([[n % E, (n + 1) % E][:K] for n in range(8)], E)
    close(switch_balance_loss(even), torch.tensor(1.0))
    close(importance_loss(even), torch.tensor(0.0))
    close(load_loss(even), torch.tensor(0.0))
    router = SoftmaxTopKRouter(E, E, 1)
    router.weight.data = 50 * torch.eye(E)
    one = router(torch.tensor([[1.0, 0, 0, 0]]).expand(8, E))
    close(switch_balance_loss(one), torch.tensor(float(E)), 1e-6)
    close(importance_loss(one), torch.tensor(E - 1.0), 1e-6)
    close(load_loss(one), torch.tensor(E - 1.0), 1e-6)


def test_switch_loss_pushes_down_the_busy_expert():
    router = SwitchRouter(4, 4)
    nn.init.zeros_(router.weight)
    router.weight.data[2] = 0.1  # all positive tokens go to expert 2
    switch_balance_loss(router(torch.rand(20, 4))).backward()
    assert (router.weight.grad[2] > 0).all()
    assert (router.weight.grad[[0, 1, 3]] < 0).all()


def test_the_switch_gate_is_its_probability():
    router = SwitchRouter(D, 5).double()
    routing = router(rows(7, D))
    close(routing.gates[:, 0], routing.probabilities.max(-1).values)
    grad = torch.autograd.grad(routing.gates.sum(), router.weight)[0]
    assert grad.abs().sum() > 0


def test_z_loss_by_hand():
    routing = given_routing([[0], [1]], 4)
    close(router_z_loss(routing), torch.tensor(4.0).log() ** 2, 1e-6)


def test_sequence_loss_by_a_loop():
    torch.manual_seed(0)
    router = SigmoidRouter(D, 6, 2).double()
    router.selection_bias += torch.randn(6)  # must not matter here
    routing = router(rows(3 * 5, D))
    scores = routing.logits.sigmoid().view(3, 5, 6)
    total = 0.0
    for sequence in scores:
        for i in range(6):
            hits = sum(i in s.topk(2).indices.tolist() for s in sequence)
            f = 6 / (2 * 5) * hits
            total += f * sum(s[i] / s.sum() for s in sequence) / 5
    close(sequence_balance_loss(routing, 3), total / 3)
    with pytest.raises(ValueError, match="2 does not divide 15"):
        sequence_balance_loss(routing, 2)


def test_the_selection_bias_balances_a_skewed_router():
    torch.manual_seed(0)
    router = SigmoidRouter(8, 8, 2)
    x = torch.randn(512, 8) + 1.0
    before = router(x)
    gates = dense_gates(before)
    for _ in range(400):
        router.update_bias(expert_counts(router(x)), speed=0.002)
    after = router(x)
    worst_before = expert_counts(before).max() / 128
    worst_after = expert_counts(after).max() / 128
    assert worst_before > 1.5 and worst_after < 1.1, (worst_before, worst_after)
    assert torch.equal(before.probabilities, after.probabilities)
    assert gates.shape == (512, 8) and router.weight.grad is None


def test_the_bias_moves_by_sign():
    router = SigmoidRouter(4, 4, 2)
    router.update_bias(torch.tensor([10, 2, 4, 0]), speed=0.5)
    assert router.selection_bias.tolist() == [-0.5, 0.5, 0.0, 0.5]
    logits = router(torch.randn(6, 4))
    chosen = logits.logits.sigmoid().gather(1, logits.experts)
    close(logits.gates, chosen / chosen.sum(-1, keepdim=True), 1e-6)


# ── Capacity ─────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.data(), st.integers(1, 6))
def test_capacity_by_a_loop(N, E, data, capacity):
    K = data.draw(st.integers(1, E))
    routing = SoftmaxTopKRouter(4, E, K)(torch.randn(N, 4))
    capped = drop_overflow(routing, capacity)
    load = [0] * E
    for n in range(N):
        for k in range(K):
            e = routing.experts[n, k].item()
            kept = load[e] < capacity
            load[e] += kept
            assert capped.kept[n, k] == kept
            assert capped.gates[n, k] == (routing.gates[n, k] if kept else 0)
    assert torch.equal(expert_counts(capped), expert_counts(routing))


def test_dropped_tokens_get_zeros():
    router = SwitchRouter(D, 4)
    nn.init.zeros_(router.weight)
    router.weight.data[1] = 1.0
    layer = mixture(Capped(router, 1.0))
    x = rows(2, 4, D).abs()  # all 8 tokens want expert 1, which takes 8/4 = 2
    out, free = layer(x), MixtureOfExperts(router, layer.experts)(x)
    close(out[0, :2], free[0, :2])
    assert out[0, 2:].abs().sum() == out[1].abs().sum() == 0
    x = x.requires_grad_()
    (grad,) = torch.autograd.grad(layer(x).sum(), x)
    assert grad[0, :2].abs().sum() > 0 and grad[1].abs().sum() == 0


def test_enough_capacity_drops_nothing():
    router = SoftmaxTopKRouter(D, 5, 2)
    capped = mixture(Capped(router, 5.0))
    x = rows(2, 6, D)
    close(capped(x), MixtureOfExperts(router, capped.experts)(x))
    one_token = Capped(router, 0.01)(rows(1, D))
    assert one_token.kept.any()  # a capacity below 1 would silence the layer


def test_capacity_is_rounded_up_and_dropped_tokens_cost_nothing():
    router = Capped(SwitchRouter(D, 4), 1.25)
    nn.init.zeros_(router.router.weight)
    experts, worked = Experts(4, D, D_EXPERT), []
    experts.activation.register_forward_hook(lambda m, i, out: worked.append(len(out)))
    routing = router(torch.randn(6, D))
    experts(torch.randn(6, D), routing)
    assert routing.kept.sum() == 2  # ⌈6 / 4 · 1.25⌉ = ⌈1.875⌉
    assert worked == [2]


# ── Seeing inside ────────────────────────────────────────────────────────────────────


def test_recording_sees_every_layer_with_gradients_alive():
    first, second = (mixture(SoftmaxTopKRouter(D, 4, 2)) for _ in range(2))
    model = nn.Sequential(first, second)
    x = rows(2, 3, D)
    plain = model(x)
    with record_routing(model) as seen:
        model(x + 1)
        close(model(x), plain, 0)  # the latest call is kept
    assert list(seen) == ["0", "1"]
    assert torch.equal(seen["0"].experts, first.router(x.flatten(0, 1)).experts)
    sum(map(switch_balance_loss, seen.values())).backward()
    assert first.router.weight.grad.abs().sum() > 0
    seen.clear()
    model(x)
    assert not seen  # the hooks are gone
    with pytest.raises(RuntimeError), record_routing(model):
        raise RuntimeError
    assert not first.router._forward_hooks


def test_recording_refuses_what_has_no_experts():
    with pytest.raises(ValueError, match="Linear has no mixture"):
        record_routing(nn.Linear(2, 2)).__enter__()
    with pytest.raises(TypeError, match="str"):
        record_routing("model").__enter__()


def test_padding_is_left_out_by_rows():
    torch.manual_seed(0)
    router = NoisyTopKRouter(D, 4, 2)
    keep = torch.tensor([True, False, True, True])
    routing = drop_overflow(router(torch.randn(4, D)), 2)
    real = routing.rows(keep)
    assert expert_counts(real).sum() == 6
    assert real.chances.shape == (3, 4) and real.kept.shape == (3, 2)
    assert torch.equal(real.gates, routing.rows(torch.tensor([0, 2, 3])).gates)


# ── Precision, devices, errors ───────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", ROUTERS.values())
def test_low_precision_chooses_as_float32_does(dtype, make):
    torch.manual_seed(0)
    layer = MixtureOfExperts(make(D, 8, 2), Experts(8, D, D_EXPERT)).to(dtype).eval()
    if make is NoisyTopKRouter:
        nn.init.normal_(layer.router.weight)
    x = torch.randn(2, 40, D).to(dtype)
    with record_routing(layer) as seen:
        low = layer(x)
    wide = layer.float()
    with record_routing(wide) as seen_wide:
        high = wide(x.float())
    assert low.dtype == dtype and seen[""].gates.dtype == torch.float32
    assert torch.equal(seen[""].experts, seen_wide[""].experts)
    close(seen[""].gates, seen_wide[""].gates)
    assert (low.float() - high).abs().max() < 8 * torch.finfo(dtype).eps


def test_autocast_leaves_the_router_alone():
    layer = MixtureOfExperts(SoftmaxTopKRouter(D, 8, 2), Experts(8, D, D_EXPERT))
    x = torch.randn(1, 30, D)
    with record_routing(layer) as seen:
        plain = layer(x)
        routing = seen[""]
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(x)
    assert torch.equal(seen[""].gates, routing.gates)
    assert 0 < (mixed - plain).abs().max() < 0.02


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float32, 1e4), (torch.bfloat16, 1e4), (torch.float16, 100.0)],
)
@pytest.mark.parametrize("make", ROUTERS.values())
def test_large_input_gives_no_nan(dtype, size, make):
    torch.manual_seed(0)
    layer = MixtureOfExperts(make(D, 6, 2), Experts(6, D, D_EXPERT)).to(dtype)
    for p in layer.router.parameters():
        nn.init.normal_(p)
    x = ((torch.rand(2, 20, D) * 2 - 1) * size).to(dtype).requires_grad_()
    with record_routing(layer) as seen:
        out = layer(x)
    losses = torch.stack([loss(seen[""]) for loss in LOSSES])
    losses = torch.cat([losses, sequence_balance_loss(seen[""], 2)[None]])
    assert out.isfinite().all() and losses.isfinite().all()
    (out.float().mean() + losses.sum()).backward()
    for p in [x, *layer.parameters()]:
        assert p.grad.isfinite().all()


def test_an_empty_batch_gives_an_empty_result():
    layer = mixture(Capped(SoftmaxTopKRouter(D, 4, 2), 1.0))
    with record_routing(layer) as seen:
        assert layer(rows(0, 3, D)).shape == (0, 3, D)
    assert all(loss(seen[""]).isfinite() for loss in LOSSES)


def test_the_selection_bias_keeps_its_precision():
    router = SigmoidRouter(D, 4, 2)
    router.selection_bias += torch.tensor([0.001, 1.001, -2.001, 3.001])
    want = router.selection_bias.clone()
    router.bfloat16()
    assert router.weight.dtype == torch.bfloat16
    assert torch.equal(router.selection_bias, want)
    assert router.double().selection_bias.dtype == torch.float64
    assert "selection_bias" in router.state_dict()


@pytest.mark.parametrize("make", ROUTERS.values())
def test_built_without_memory(make):
    with torch.device("meta"):
        layer = MixtureOfExperts(make(D, 4, 2), Experts(4, D, D_EXPERT))
    assert all(t.is_meta for t in layer.state_dict().values())
    assert layer.half().router(torch.zeros(3, D, device="meta")).gates.is_meta
    layer = layer.float().to_empty(device="cpu")
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert layer(torch.randn(1, 3, D)).isfinite().all()
    linear = nn.Linear(D, D_EXPERT)
    bound = linear.weight.abs().max()
    assert layer.experts.gate.abs().max() <= D**-0.5
    close(layer.experts.gate.abs().max(), bound, 0.03)
    assert layer.experts.down.abs().max() <= D_EXPERT**-0.5


X = torch.zeros(1, 3, D)
GOOD = MixtureOfExperts(SoftmaxTopKRouter(D, 4, 2), Experts(4, D, D_EXPERT))
REFUSED = {
    "top_k": (lambda: SoftmaxTopKRouter(D, 4, 5), ValueError, "top_k 5"),
    "no experts": (lambda: NoisyTopKRouter(D, 0, 1), ValueError, "n_experts must"),
    "half an expert": (lambda: SigmoidRouter(D, 4, 0.5), TypeError, "0.5"),
    "True experts": (lambda: SwitchRouter(D, True), TypeError, "True"),
    "scale 0": (lambda: SigmoidRouter(D, 4, 2, True, 0.0), ValueError, "0.0"),
    "scale NaN": (
        lambda: SoftmaxTopKRouter(D, 4, 2, True, float("nan")),
        ValueError,
        "nan",
    ),
    "scale a word": (lambda: SigmoidRouter(D, 4, 2, True, "1"), TypeError, "'1'"),
    "groups a number": (
        lambda: SigmoidRouter(D, 4, 2, groups=2),
        TypeError,
        "int",
    ),
    "groups divide": (
        lambda: SigmoidRouter(D, 4, 2, groups=Groups(3, 1)),
        ValueError,
        "n_groups 3 does not divide n_experts 4",
    ),
    "groups too small": (
        lambda: SigmoidRouter(D, 4, 3, groups=Groups(2, 1)),
        ValueError,
        "top_k 3 is more than the 2 experts of 1 groups",
    ),
    "top_groups": (lambda: Groups(2, 3), ValueError, "top_groups 3"),
    "best 0": (lambda: Groups(2, 1, 0), ValueError, "best must be ≥ 1, got 0"),
    "experts": (lambda: Experts(0, D, 3), ValueError, "got 0"),
    "numbers differ": (
        lambda: MixtureOfExperts(SwitchRouter(D, 3), Experts(4, D, 3)),
        ValueError,
        "(3, 12), the experts (4, 12)",
    ),
    "x of 2 axes": (lambda: GOOD(X[0]), ValueError, "(3, 12)"),
    "x too wide": (lambda: GOOD(torch.zeros(1, 3, 13)), ValueError, "(1, 3, 13)"),
    "x of doubles": (lambda: GOOD(X.double()), TypeError, "float64"),
    "x a list": (lambda: GOOD([1.0]), TypeError, "list"),
    "router: integers": (lambda: GOOD.router(X[0].long()), TypeError, "int64"),
    "router: a list": (lambda: GOOD.router([1.0]), TypeError, "list"),
    "router: 3 axes": (lambda: GOOD.router(X), ValueError, "(1, 3, 12)"),
    "another routing": (
        lambda: GOOD.experts(X[0], given_routing([[0]], 4)),
        ValueError,
        "a routing of 1 tokens to 4 experts",
    ),
    "factor": (lambda: Capped(SwitchRouter(D, 2), 0.0), ValueError, "0.0"),
    "capacity": (lambda: drop_overflow(GOOD.router(X[0]), 0), ValueError, "got 0"),
    "load": (
        lambda: SigmoidRouter(D, 4, 2).update_bias(torch.zeros(3), 0.1),
        ValueError,
        "(3,)",
    ),
    "speed": (
        lambda: SigmoidRouter(D, 4, 2).update_bias(torch.zeros(4), -1.0),
        ValueError,
        "-1.0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


def test_activations_are_arguments():
    experts = Experts(1, D, D_EXPERT, nn.GELU()).double()
    x = rows(4, D)
    routing = given_routing([[0]] * 4, 1)
    out = F.gelu(x @ experts.gate[0].T) * (x @ experts.up[0].T) @ experts.down[0].T
    close(experts(x, routing), out)


class Scaled(ExpertStack):
    """The least that a kind of experts must say: its matrices, and what one does."""

    def __init__(self):
        super().__init__(3, D, D, nn.Identity())
        self.weight = nn.Parameter(torch.empty(3, D, D))
        self.reset_parameters()

    def matrices(self):
        return (self.weight,)

    def expert(self, x, weight):
        return x @ weight.T


def test_another_kind_of_experts_needs_no_more():
    layer = MixtureOfExperts(SoftmaxTopKRouter(D, 3, 1), Scaled())
    x = torch.randn(2, 4, D)
    assert layer(x).shape == x.shape
    with pytest.raises(ValueError, match="d_model"):
        layer(x[..., 1:])


def test_a_model_without_numbers_can_be_run():
    with torch.device("meta"):
        layer = MixtureOfExperts(SoftmaxTopKRouter(D, 3, 2), Experts(3, D, 4))
        assert layer(torch.empty(2, 4, D)).shape == (2, 4, D)
