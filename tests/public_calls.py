# SPDX-License-Identifier: MIT
"""One good call of everything public: what test_errors_public.py spoils, one by one.

A call is a function and its arguments by name, made afresh each time, for caches and
steps remember. What stands in EXCLUDED is not called here, and says why.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache

import torch
from torch import Tensor, nn

import deepdive
from deepdive import (
    ablation,
    configs,
    data,
    decoding,
    dependence,
    device,
    fading,
    filling,
    inputs,
    moe,
    ngrams,
    objectives,
    positions,
    trace,
    training,
)
from deepdive.attention import MultiHeadAttention, record
from deepdive.blocks import Block, Stack, place, post_norm, pre_norm
from deepdive.cache import (
    Caches,
    DecoderLayerCache,
    GrowingCache,
    Memory,
    PreallocatedCache,
    WindowedCache,
)
from deepdive.decoding import beam, generate, sampling, steps
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.kernels import attention_weights, equation, fused, layout, tiled
from deepdive.kernels.tiled import count_bytes, equation_bytes, online_softmax_steps
from deepdive.latent_attention import LatentAttention, softmax_scale
from deepdive.masks import Causal, Everyone
from deepdive.models.bert import Bert, BertEmbeddings, MaskedLM
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.moe import choice, experts, noisy
from deepdive.norms import RMSNorm
from deepdive.recurrent import alignment, cells, seq2seq

Call = tuple[Callable, dict]
OUTSIDE = {  # parts of the package, and where their wrong input is tested instead
    "accounting": "numbers about configs: test_accounting",
    "anatomy": "looks at models: test_anatomy",
    "commands": "a command line: test_main",
    "checks": "readers' answers: test_checks",
    "figures": "pictures: test_show_figures, test_errors",
    "grade": "the grader: test_checks",
    "growth": "any numbers: test_memory",
    "heads": "pictures of MiniLM: test_heads",
    "induction": "looks at language models: test_induction",
    "inference": "weights laid out again: test_inference",
    "memory": "a meter: test_memory",
    "palette": "colours: test_show_figures",
    "pretrained": "wrong files: test_huggingface, test_gguf, test_pretrained",
    "products": "any tensors, or torch's own errors: test_products",
    "recipes": "training runs: test_recipes",
    "roofline": "numbers about configs: test_roofline",
    "scoring": "any sequences: test_scoring",
    "shelf": "the book's own files: test_spelling",
    "show": "pictures: test_show_figures, test_errors",
    "timing": "a stopwatch: test_timing",
    "tokenizers": "another library's objects: test_tokenizers",
    "widgets": "tests/widgets",
    "__main__": "a command line: test_main",
}
CHECKED = "an inner step: its caller has checked what it gets"
EXCLUDED = {  # a name, or a pattern, and all that belongs to it
    "blocks.Place": "what place gives back",
    "cache.Cache": "abstract; its methods are called through GrowingCache",
    "data.PairBatch": "what PairBatches gives back",
    "data.read_pronunciations": "reads a file: test_data",
    "data.seeded": "any numbers",
    "data.without_stress": "any words",
    "decoding.beam.Found": "what beam_search gives back",
    "decoding.generate.Generated": "what sample gives back",
    "decoding.generate.first_stop": CHECKED,
    "decoding.sampling.largest": CHECKED,
    "decoding.sampling.log_probabilities": CHECKED,
    "decoding.speculative.Speculated": "what speculative gives back",
    "decoding.steps.need": "a check itself",
    "decoding.steps.read": "a check itself, of what a step answers: test_decoding",
    "device.best_device": "takes nothing",
    "filling.Ranked": "what rerank gives back",
    "halves": "what the models share; called through them",
    "inputs.check_floats": "a check itself",
    "inputs.check_kind": "a check itself",
    "inputs.check_last": "a check itself",
    "inputs.check_sizes": "a check itself",
    "kernels.contract": "the check itself, seen through every kernel",
    "kernels.equation.masked_softmax": CHECKED,
    "kernels.equation.mix": CHECKED,
    "kernels.equation.scaled_scores": CHECKED,
    "kernels.equation.shared_product": CHECKED,
    "kernels.tiled.Plan": CHECKED,
    "kernels.tiled.State": CHECKED,
    "kernels.tiled.TileStep": "what online_softmax_steps gives back",
    "kernels.tiled.Traffic": "what count_bytes gives",
    "kernels.tiled.backward": CHECKED,
    "kernels.tiled.crop": CHECKED,
    "kernels.tiled.finish": CHECKED,
    "kernels.tiled.forward": CHECKED,
    "kernels.tiled.make_plan": CHECKED,
    "kernels.tiled.no_autocast": CHECKED,
    "kernels.tiled.product_over_queries": CHECKED,
    "kernels.tiled.seen": CHECKED,
    "kernels.tiled.sees_all": CHECKED,
    "kernels.tiled.tiles": CHECKED,
    "kernels.tiled.update": CHECKED,
    "kernels.triton": "needs Triton: test_triton",
    "latent_attention.LatentAttention.absorbed": CHECKED,
    "latent_attention.LatentAttention.absorbing_is_cheaper": CHECKED,
    "latent_attention.LatentAttention.asked_and_kept": CHECKED,
    "latent_attention.LatentAttention.expanded": CHECKED,
    "latent_attention.LatentAttention.latent": CHECKED,
    "latent_attention.LatentAttention.mixed": CHECKED,
    "latent_attention.LatentAttention.queries": CHECKED,
    "masks.check_keep": "the check itself, of every rule",
    "masks.Causal.allowed": "the rule itself, on any positions",
    "masks.Causal.simplest": CHECKED,
    "masks.Everyone.allowed": "the rule itself, on any positions",
    "masks.Everyone.simplest": CHECKED,
    "masks.Rule": "abstract; its methods are called through Causal",
    "masks.as_tensor": CHECKED,
    "models.*.build_*": "part of a model's constructor, given its config",
    "models.*.start": "part of a model's constructor",
    "models.transformer2017.Transformer.embed": CHECKED,
    "moe.choice.check_choice": "a check itself",
    "moe.experts.ExpertStack": "abstract; called through Experts",
    "moe.experts.Experts.expert": CHECKED,
    "moe.experts.Experts.matrices": "takes nothing",
    "moe.experts.TwoLayerExperts.expert": CHECKED,
    "moe.experts.TwoLayerExperts.matrices": "takes nothing",
    "moe.experts.FeedForwardExperts": "abstract; called through Experts",
    "moe.grouped": "what the experts choose; called through them",
    "moe.sorted": "what the experts choose; called through them",
    "moe.noisy.NoisyTopKRouter.reset_parameters": "takes nothing",
    "moe.router": "what the routers share; called through them",
    "moe.routing.Routing": "what a router gives back",
    "moe.sigmoid.SigmoidRouter.reset_parameters": "takes nothing",
    "ngrams.Counts": "what KneserNey keeps",
    "objectives.losses.Loss": "a pair; what reads it checks it",
    "objectives.losses.check_labels": "a check itself",
    "objectives.rows": "called by the losses, which check",
    "positions.angles.check_*": "says what is wrong with the arguments of others",
    "positions.angles.frequencies": "called with a checked width and base",
    "positions.rotary.Rotation": "what Rotary gives back; called as rotate",
    "positions.scaling.magnitude": "called with a checked scaling",
    "positions.scaling.scaled": "called by Rotary, which has checked scaling and base",
    "positions.scaling.yarn_temperature": "called with the numbers of a scaling",
    "recurrent.alignment.MaskedSoftmax": CHECKED,
    "recurrent.cells.Cell": "abstract; called through its three kinds",
    "recurrent.cells.ElmanCell.step": CHECKED,
    "recurrent.cells.GruCell.step": CHECKED,
    "recurrent.cells.LstmCell.step": CHECKED,
    "recurrent.cells.check_*": "a check itself",
    "recurrent.cells.kept": CHECKED,
    "recurrent.seq2seq.Carry": "what new_caches gives",
    "recurrent.seq2seq.Encoded": "what encode gives",
    "recurrent.seq2seq.Step": "what start gives; called as a step below",
    "recurrent.seq2seq.Seq2Seq.new_caches": "takes nothing",
    "recurrent.seq2seq.backward_end": "a part of Encoder, which calls it",
    "recurrent.seq2seq.both_ends": "a part of Encoder, which calls it",
    "trace.before.recurrent_cell": CHECKED,
    "trace.example.Network": "numbers of the page",
    "trace.example.Recurrence": "numbers of the page",
    "trace.example.matrix": "numbers of the page",
    "trace.formula.to_json": "takes anything",
    "trace.model.block_module": CHECKED,
    "trace.model.routed_module": CHECKED,
    "training.averages.EMA.__call__": "called by fit",
    "training.averages.EMA.applied": "takes nothing",
    "training.averages.EMA.load_state_dict": "called by fit: test_training",
    "training.averages.EMA.state_dict": "takes nothing",
    "training.checkpoints": "files: test_training",
    "training.distributed": "many processes: test_distributed",
    "training.log": "files: test_training",
    "training.progress": "called by fit",
    "training.recipe": "called by fit",
    "training.run": "called by fit",
    "training.sharding": "many processes: test_distributed",
    "training.shares": "called by fit: test_distributed",
    "training.update": "called by fit",
}


def public() -> Iterator[str]:
    """Name every public function, class and method, as "cache.Caches.truncate"."""
    for found in pkgutil.walk_packages(deepdive.__path__, "deepdive."):
        module = found.name.removeprefix("deepdive.")
        if module.split(".")[0] in OUTSIDE:
            continue
        for name, thing in vars(importlib.import_module(found.name)).items():
            own = getattr(thing, "__module__", None) == found.name
            if name.startswith("_") or not own:
                continue
            if inspect.isfunction(thing) or inspect.isclass(thing):
                yield f"{module}.{name}"
            if inspect.isclass(thing):
                yield from (f"{module}.{name}.{m}" for m in methods(thing))


def methods(kind: type) -> list[str]:
    return [
        name
        for name, thing in vars(kind).items()
        if inspect.isfunction(thing)
        and (not name.startswith("_") or name == "__call__")
        and name != "extra_repr"
    ]


def excluded(name: str) -> str | None:
    """The reason given for this name, or for the class or module that it is part of."""
    for pattern, reason in EXCLUDED.items():
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*"):
            return reason
    return None


# ── Material ─────────────────────────────────────────────────────────────────────────


def x(*shape: int, dtype=torch.float32) -> Tensor:
    numbers = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype)


def ids(*shape: int, below: int = 9) -> Tensor:
    numbers = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, below, shape, generator=numbers)


def keep(B: int, S: int) -> Tensor:
    kept = torch.ones(B, S, dtype=torch.bool)
    kept[0, 0] = False
    return kept


def after(function: Callable, *arguments, **more) -> Callable:
    """A function whose first arguments stand: it takes the others by name."""
    return lambda **named: function(*arguments, **more, **named)


def opened(manager: Callable) -> Callable:
    """Enter and leave a context manager."""

    def enter(**named):
        with manager(**named):
            pass

    return enter


def star(function: Callable, name: str) -> Callable:
    """Pass one argument, a sequence, as several."""

    def call(**named):
        several = named.pop(name)
        several = several if isinstance(several, (list, tuple)) else [several]
        return function(*several, **named)

    return call


@cache
def built(kind: str) -> nn.Module:
    """The models, each once: nothing here changes their weights."""
    torch.manual_seed(0)
    small = {"d_model": 8, "n_layers": 2, "n_heads": 2}
    one = small | {"vocab_size": 9, "d_ff": 6, "max_seq_len": 12}
    groups = {"n_kv_heads": 1}
    experts = {"d_expert": 4, "n_experts": 4, "top_k": 2, "max_seq_len": 12}
    latent = {
        "q_lora_rank": 4,
        "kv_lora_rank": 4,
        "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 2,
        "v_head_dim": 3,
        "n_dense_layers": 1,
        "n_shared_experts": 1,
        "n_groups": 2,
        "top_groups": 1,
    }
    pair = {"src_vocab_size": 9, "tgt_vocab_size": 9, "d_ff": 6}
    c = configs
    make = {
        "bert": lambda: Bert(c.BertConfig(**one)),
        "mlm": lambda: MaskedLM(c.BertConfig(**one)),
        "gpt": lambda: Gpt(c.GptConfig(**one)),
        "llama": lambda: Llama(c.LlamaConfig(**one, **groups)),
        "mistral": lambda: Llama(c.LlamaConfig(**one, **groups, window=3)),
        "mixtral": lambda: Mixtral(
            c.MixtralConfig(**small, **groups, **experts, vocab_size=9)
        ),
        "v2": lambda: DeepSeek(
            c.DeepSeekV2Config(**small, **experts, **latent, vocab_size=9, d_ff=6)
        ),
        "v3": lambda: DeepSeek(
            c.DeepSeekV3Config(**small, **experts, **latent, vocab_size=9, d_ff=6)
        ),
        "t5": lambda: T5(c.T5Config(**small, head_dim=3, vocab_size=9, d_ff=6)),
        "2017": lambda: Transformer(c.TransformerConfig(**small, **pair)),
        "seq2seq": lambda: recurrent(),
    }
    return make[kind]().eval()


DECODERS = "gpt", "llama", "mistral", "mixtral", "v2", "v3"


def recurrent() -> nn.Module:
    bahdanau = alignment.BahdanauAttention(6, 12, 5)
    reader = seq2seq.Encoder(
        nn.Embedding(9, 4), cells.GruCell(4, 6), cells.GruCell(4, 6)
    )
    writer = seq2seq.Decoder(
        nn.Embedding(9, 4), cells.GruCell(16, 6), nn.Linear(18, 9), bahdanau
    )
    return seq2seq.Seq2Seq(reader, writer)


LAYER = MultiHeadAttention(8, 4, 2)
FFN = FeedForward(8, 6, nn.ReLU())
GATED = GatedFeedForward(8, 6, nn.SiLU())
NORM = RMSNorm(8)
BAHDANAU = alignment.BahdanauAttention(6, 8, 5)
MLA = LatentAttention(8, 2, 4, 3, 2, 3, q_lora_rank=4)


def block(cross: bool = False) -> Block:
    norms = (nn.LayerNorm(8) for _ in range(3))
    more = (LAYER, next(norms)) if cross else ()
    return Block(LAYER, FFN, next(norms), next(norms), pre_norm, *more)


def filled(store, T: int = 4):
    """A cache that has seen T tokens."""
    store.append(x(2, 2, T, 3), x(2, 2, T, 3))
    return store


def caches(n: int = 2) -> Caches:
    return Caches(filled(GrowingCache()) for _ in range(n))


def counted() -> ngrams.KneserNey:
    return ngrams.KneserNey(ids(20), order=3, vocab_size=9)


def routing() -> moe.Routing:
    router = moe.SoftmaxTopKRouter(8, 4, 2)
    router.weight.data = x(4, 8)
    return router(x(6, 8))


def step_of(kind: str = "gpt", cached: bool = True, **more):
    model = built(kind)
    if cached:
        return decoding.CachedStep(model, model.new_caches(), **more)
    return decoding.UncachedStep(model, **more)


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def plain_loss(logits: Tensor):
    return objectives.Loss(logits.sum(), 3)


def fit_call() -> Call:
    model = nn.Linear(2, 2)
    return training.fit, {
        "model": model,
        "batches": lambda number: x(3, 2),
        "loss": lambda model, batch: plain_loss(model(batch)),
        "optimiser": torch.optim.SGD(model.parameters(), lr=0.1),
        "steps": 2,
        "schedule": training.constant(1),
        "clip": 1.0,
        "accumulate": 1,
        "every": 1,
        "progress": False,
        "callbacks": (),
    }


QKV = {"q": (2, 4, 3, 6), "k": (2, 2, 5, 6), "v": (2, 2, 5, 6)}


def kernel_call(kernel: Callable, names: str = "qkv", **more) -> Callable[[], Call]:
    def make() -> Call:
        tensors = {name: x(*QKV[name]) for name in names}
        extra = {"mask": keep(3, 5), "bias": x(4, 3, 5), "scale": 0.5}
        return kernel, {**tensors, **extra, **more}

    return make


# ── The calls ────────────────────────────────────────────────────────────────────────

K = Callable[[], Call]
CALLS: dict[str, K] = {
    "ablation.ablate": lambda: (
        opened(ablation.ablate),
        {"model": built("bert"), "layer": 1, "head": 0},
    ),
    "attention.MultiHeadAttention": lambda: (
        MultiHeadAttention,
        {
            "d_model": 8,
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 3,
            "kernel": equation,
            "scale": 0.5,
        },
    ),
    "attention.MultiHeadAttention.forward": lambda: (
        LAYER,
        {
            "x": x(2, 3, 8),
            "context": x(2, 5, 8),
            "mask": keep(3, 5),
            "bias": x(4, 3, 5),
            "rotate": None,
            "cache": Memory(),
        },
    ),
    "attention.MultiHeadAttention.forward (cached)": lambda: (
        LAYER,
        {
            "x": x(2, 3, 8),
            "mask": Causal(),
            "rotate": positions.Rotary(2)(torch.arange(3)),
            "cache": GrowingCache(),
        },
    ),
    "attention.MultiHeadAttention.keys_values": lambda: (
        LAYER.keys_values,
        {"context": x(2, 5, 8)},
    ),
    "attention.record": lambda: (opened(record), {"model": LAYER}),
    "blocks.post_norm": lambda: (
        post_norm,
        {"x": x(2, 3, 8), "sublayer": FFN, "norm": NORM},
    ),
    "blocks.pre_norm": lambda: (
        pre_norm,
        {"x": x(2, 3, 8), "sublayer": FFN, "norm": NORM},
    ),
    "blocks.Block": lambda: (
        Block,
        {
            "attention": LAYER,
            "feedforward": FFN,
            "attention_norm": nn.LayerNorm(8),
            "feedforward_norm": nn.LayerNorm(8),
            "residual": pre_norm,
            "cross_attention": LAYER,
            "cross_norm": nn.LayerNorm(8),
            "dropout": 0.1,
        },
    ),
    "blocks.Block.forward": lambda: (
        block(cross=True),
        {
            "x": x(2, 3, 8),
            "memory": x(2, 5, 8),
            "memory_mask": keep(3, 5),
            "cache": DecoderLayerCache(GrowingCache(), Memory()),
            "mask": Causal(),
        },
    ),
    "blocks.Block.forward (alone)": lambda: (
        block(),
        {"x": x(2, 3, 8), "memory": None, "cache": GrowingCache(), "mask": keep(3, 3)},
    ),
    "blocks.Stack": lambda: (Stack, {"modules": [block()]}),
    "blocks.Stack.forward": lambda: (
        Stack([block()]),
        {"x": x(2, 3, 8), "caches": Caches([GrowingCache()]), "mask": Causal()},
    ),
    "blocks.Stack.one_each": lambda: (
        Stack([block()]).one_each,
        {"caches": Caches([GrowingCache()])},
    ),
    "blocks.place": lambda: (
        place,
        {
            "tokens": ids(2, 3),
            "caches": caches(),
            "keep": keep(2, 7),
            "positions": ids(2, 3),
            "window": 4,
            "max_seq_len": 9,
        },
    ),
    "cache.DecoderLayerCache": lambda: (
        DecoderLayerCache,
        {"own": GrowingCache(), "memory": Memory()},
    ),
    "cache.PreallocatedCache": lambda: (PreallocatedCache, {"capacity": 5}),
    "cache.WindowedCache": lambda: (WindowedCache, {"window": 3, "spare": 1}),
    "data.PairBatches": lambda: (
        data.PairBatches,
        {"pairs": [([1, 2], [3]), ([4], [5, 6])], "batch": 2, "pad": 0, "seed": 1},
    ),
    "data.PairBatches.__call__": lambda: (
        data.PairBatches([([1, 2], [3]), ([4], [5, 6])], 2),
        {"number": 3},
    ),
    "data.Windows": lambda: (
        data.Windows,
        {"tokens": ids(20), "length": 4, "batch": 2, "seed": 1},
    ),
    "data.Windows.__call__": lambda: (data.Windows(ids(20), 4, 2), {"number": 3}),
    "data.padded": lambda: (data.padded, {"rows": [[1, 2], [3]], "pad": 0}),
    "data.split_items": lambda: (
        after(data.split_items, "abcdef"),
        {"seed": 0},
    ),
    "data.split_stream": lambda: (
        data.split_stream,
        {"tokens": ids(20), "held_out": 0.2},
    ),
    "device.seed_everything": lambda: (device.seed_everything, {"seed": 3}),
    "feedforward.FeedForward": lambda: (
        FeedForward,
        {"d_model": 8, "d_ff": 6, "activation": nn.ReLU()},
    ),
    "feedforward.FeedForward.forward": lambda: (FFN, {"x": x(2, 3, 8)}),
    "feedforward.GatedFeedForward": lambda: (
        GatedFeedForward,
        {"d_model": 8, "d_ff": 6, "activation": nn.SiLU()},
    ),
    "feedforward.GatedFeedForward.forward": lambda: (GATED, {"x": x(2, 3, 8)}),
    "inputs.check_batch": lambda: (
        inputs.check_batch,
        {"tokens": ids(2, 3), "keep": keep(2, 3)},
    ),
    "inputs.check_ids": lambda: (
        after(inputs.check_ids, "token"),
        {"ids": ids(2, 3), "size": 9},
    ),
    "inputs.check_vectors": lambda: (
        after(inputs.check_vectors, "x", weight=x(5, 8)),
        {"x": x(2, 3, 8)},
    ),
    "kernels.equation.attention_weights": kernel_call(attention_weights, "qk"),
    "kernels.equation.equation": kernel_call(equation),
    "kernels.fused.fused": kernel_call(fused),
    "kernels.tiled.tiled": kernel_call(tiled, block_size=2),
    "kernels.layout.merge_heads": lambda: (layout.merge_heads, {"x": x(2, 4, 3, 2)}),
    "kernels.layout.split_heads": lambda: (
        layout.split_heads,
        {"x": x(2, 3, 8), "n_heads": 4},
    ),
    "kernels.tiled.count_bytes": lambda: (opened(count_bytes), {}),
    "kernels.tiled.equation_bytes": lambda: (
        equation_bytes,
        {"B": 1, "H": 4, "T": 3, "S": 5, "D": 2, "G": 2, "Dv": 6, "itemsize": 2},
    ),
    "kernels.tiled.online_softmax_steps": lambda: (
        online_softmax_steps,
        {
            "q": x(3, 4),
            "k": x(5, 4),
            "v": x(5, 2),
            "block_size": 2,
            "mask": keep(3, 5),
            "scale": 0.5,
        },
    ),
    "latent_attention.LatentAttention": lambda: (
        LatentAttention,
        {
            "d_model": 8,
            "n_heads": 2,
            "kv_lora_rank": 4,
            "qk_nope_head_dim": 3,
            "qk_rope_head_dim": 2,
            "v_head_dim": 3,
            "q_lora_rank": 4,
            "norm": RMSNorm,
            "kernel": equation,
            "scale": 0.5,
        },
    ),
    "latent_attention.LatentAttention.forward": lambda: (
        MLA,
        {
            "x": x(2, 3, 8),
            "mask": Causal(),
            "rotate": positions.Rotary(2)(torch.arange(3)),
            "cache": GrowingCache(),
        },
    ),
    "latent_attention.softmax_scale": lambda: (
        softmax_scale,
        {"qk_head_dim": 6, "rope_scaling": configs.YarnScaling(4.0, 8)},
    ),
    "masks.Causal": lambda: (Causal, {"window": 2, "prefix": 1, "keep": keep(2, 5)}),
    "masks.Everyone": lambda: (Everyone, {"keep": keep(2, 5)}),
    "masks.Causal.tensor": lambda: (
        Causal(2, 1, keep=keep(2, 5)).tensor,
        {"T": 3, "S": 5},
    ),
    "masks.Causal.tile": lambda: (
        Causal(2, 1, keep=keep(2, 5)).tile,
        {"t0": 1, "t1": 3, "s0": 2, "s1": 4},
    ),
    "norms.RMSNorm": lambda: (RMSNorm, {"d_model": 8, "eps": 1e-6}),
    "norms.RMSNorm.forward": lambda: (NORM, {"x": x(2, 3, 8)}),
}

CACHES = {
    "GrowingCache": GrowingCache,
    "PreallocatedCache": lambda: PreallocatedCache(6),
    "WindowedCache": lambda: WindowedCache(3, 1),
    "Memory": Memory,
}
for kind, make in CACHES.items():
    if kind in ("GrowingCache", "Memory"):
        CALLS[f"cache.{kind}"] = lambda make=make: (make, {})
    CALLS |= {
        f"cache.{kind}.append": lambda make=make: (
            star(make().append, "entries"),
            {"entries": x(2, 2, 3, 4)},
        ),
        f"cache.{kind}.columns": lambda make=make: (filled(make()).columns, {"T": 2}),
        f"cache.{kind}.truncate": lambda make=make: (
            filled(make()).truncate,
            {"n": 3},
        ),
        f"cache.{kind}.reorder": lambda make=make: (
            filled(make()).reorder,
            {"rows": torch.tensor([1, 0])},
        ),
    }
CALLS["cache.GrowingCache.append (more)"] = lambda: (
    lambda entries: filled(GrowingCache()).append(entries, x(2, 2, 1, 3)),
    {"entries": x(2, 2, 1, 3)},
)
for kind, make in {
    "Caches": caches,
    "DecoderLayerCache": lambda: DecoderLayerCache(
        filled(GrowingCache()), filled(Memory())
    ),
}.items():
    CALLS |= {
        f"cache.{kind}.columns": lambda make=make: (make().columns, {"T": 2}),
        f"cache.{kind}.truncate": lambda make=make: (make().truncate, {"n": 3}),
        f"cache.{kind}.reorder": lambda make=make: (
            make().reorder,
            {"rows": torch.tensor([1, 0])},
        ),
    }
CALLS["cache.Caches"] = lambda: (Caches, {"caches": [GrowingCache()]})

# Configs: each field of each, at its smallest sensible size.
SMALL = {
    "LinearScaling": {"factor": 2.0},
    "NTKScaling": {"factor": 2.0},
    "YarnScaling": {
        "factor": 2.0,
        "original_max_seq_len": 8,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "Llama3Scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_seq_len": 8,
    },
}
for kind in (
    "AttentionConfig",
    "TransformerConfig",
    "BertConfig",
    "GptConfig",
    "T5Config",
    "LlamaConfig",
    "MixtralConfig",
    "DeepSeekV2Config",
    "DeepSeekV3Config",
):
    SMALL[kind] = dict(vars(getattr(configs, kind)()))
SMALL["AttentionConfig"] |= {"window": 8}
SMALL["LlamaConfig"] |= {"window": 8, "rope_scaling": configs.LinearScaling(2.0)}
for kind, sizes in SMALL.items():
    CALLS[f"configs.{kind}"] = lambda kind=kind, sizes=sizes: (
        getattr(configs, kind),
        dict(sizes),
    )

CALLS |= {
    # Positions
    "positions.added.SinusoidalPositions": lambda: (
        positions.SinusoidalPositions,
        {"d_model": 8, "base": 100.0},
    ),
    "positions.added.SinusoidalPositions.forward": lambda: (
        positions.SinusoidalPositions(8),
        {"positions": ids(2, 3)},
    ),
    "positions.added.NoPositions": lambda: (positions.NoPositions, {"d_model": 8}),
    "positions.added.NoPositions.forward": lambda: (
        positions.NoPositions(8),
        {"positions": ids(2, 3)},
    ),
    "positions.added.LearnedPositions": lambda: (
        positions.LearnedPositions,
        {"max_seq_len": 9, "d_model": 4},
    ),
    "positions.added.LearnedPositions.forward": lambda: (
        positions.LearnedPositions(9, 4),
        {"positions": ids(2, 3)},
    ),
    "positions.added.LearnedPositions.first": lambda: (
        positions.LearnedPositions(9, 4).first,
        {"T": 3},
    ),
    "positions.rotary.interleaved": lambda: (positions.interleaved, {"x": x(2, 3, 8)}),
    "positions.rotary.half_split": lambda: (positions.half_split, {"x": x(2, 3, 8)}),
    "positions.rotary.Rotary": lambda: (
        positions.Rotary,
        {
            "head_dim": 6,
            "base": 100.0,
            "pairing": positions.interleaved,
            "scaling": configs.LinearScaling(2.0),
        },
    ),
    "positions.rotary.Rotary.forward": lambda: (
        positions.Rotary(6),
        {"positions": ids(2, 3)},
    ),
    "positions.rotary.Rotary.frequencies": lambda: (
        positions.Rotary(6).frequencies,
        {},
    ),
    "positions.rotary.Rotary (rotate)": lambda: (
        positions.Rotary(6)(ids(2, 3)),
        {"x": x(2, 4, 3, 6)},
    ),
    "positions.bias.RelativeBias": lambda: (
        positions.RelativeBias,
        {"n_heads": 2, "bidirectional": True, "n_buckets": 8, "max_distance": 9},
    ),
    "positions.bias.RelativeBias.forward": lambda: (
        positions.RelativeBias(2, True, 8, 9),
        {"queries": torch.arange(3), "keys": torch.arange(5)},
    ),
    "positions.bias.relative_bucket": lambda: (
        positions.relative_bucket,
        {
            "distance": ids(3, 5) - 4,
            "bidirectional": True,
            "n_buckets": 8,
            "max_distance": 9,
        },
    ),
    "positions.bias.Alibi": lambda: (positions.Alibi, {"n_heads": 3}),
    "positions.bias.Alibi.slopes": lambda: (positions.Alibi(3).slopes, {}),
    "positions.bias.Alibi.forward": lambda: (
        positions.Alibi(3),
        {"queries": torch.arange(3), "keys": torch.arange(5)},
    ),
    "positions.angles.token_positions": lambda: (
        positions.token_positions,
        {"T": 3, "seen": 4, "keep": keep(2, 7)},
    ),
    # Experts
    "moe.balance.importance_loss": lambda: (
        moe.importance_loss,
        {"routing": routing()},
    ),
    "moe.balance.load_loss": lambda: (moe.load_loss, {"routing": routing()}),
    "moe.balance.switch_balance_loss": lambda: (
        moe.switch_balance_loss,
        {"routing": routing()},
    ),
    "moe.balance.router_z_loss": lambda: (moe.router_z_loss, {"routing": routing()}),
    "moe.balance.sequence_balance_loss": lambda: (
        moe.sequence_balance_loss,
        {"routing": routing(), "n_sequences": 2},
    ),
    "moe.capacity.drop_overflow": lambda: (
        moe.drop_overflow,
        {"routing": routing(), "capacity": 2},
    ),
    "moe.capacity.Capped": lambda: (
        moe.Capped,
        {"router": moe.SwitchRouter(8, 4), "factor": 1.25},
    ),
    "moe.capacity.Capped.forward": lambda: (
        moe.Capped(moe.SwitchRouter(8, 4), 1.25),
        {"x": x(6, 8)},
    ),
    "moe.choice.Groups": lambda: (
        moe.Groups,
        {"n_groups": 4, "top_groups": 2, "best": 2},
    ),
    "moe.choice.Groups.reachable": lambda: (
        moe.Groups(2, 1).reachable,
        {"scores": x(6, 4)},
    ),
    "moe.choice.choose": lambda: (
        choice.choose,
        {"scores": x(6, 4), "top_k": 2, "groups": moe.Groups(2, 1)},
    ),
    "moe.experts.Experts": lambda: (
        moe.Experts,
        {"n_experts": 4, "d_model": 8, "d_expert": 5, "activation": nn.GELU()},
    ),
    "moe.experts.TwoLayerExperts": lambda: (
        moe.TwoLayerExperts,
        {"n_experts": 4, "d_model": 8, "d_expert": 5, "activation": nn.GELU()},
    ),
    "moe.experts.Experts.forward": lambda: (
        moe.Experts(4, 8, 5),
        {"x": x(6, 8), "routing": routing()},
    ),
    "moe.experts.Experts.dense": lambda: (
        moe.Experts(4, 8, 5).dense,
        {"x": x(6, 8), "routing": routing()},
    ),
    "moe.experts.sort_by_expert": lambda: (
        experts.sort_by_expert,
        {"routing": routing()},
    ),
    "moe.layer.MixtureOfExperts": lambda: (
        moe.MixtureOfExperts,
        {
            "router": moe.SwitchRouter(8, 4),
            "experts": moe.Experts(4, 8, 5),
            "shared": FFN,
        },
    ),
    "moe.layer.MixtureOfExperts.forward": lambda: (
        moe.MixtureOfExperts(moe.SoftmaxTopKRouter(8, 4, 2), moe.Experts(4, 8, 5), FFN),
        {"x": x(2, 3, 8)},
    ),
    "moe.layer.record_routing": lambda: (
        opened(moe.record_routing),
        {"model": built("mixtral")},
    ),
    "moe.noisy.NoisyTopKRouter": lambda: (
        moe.NoisyTopKRouter,
        {"d_model": 8, "n_experts": 4, "top_k": 2},
    ),
    "moe.noisy.NoisyTopKRouter.forward": lambda: (
        moe.NoisyTopKRouter(8, 4, 2),
        {"x": x(6, 8)},
    ),
    "moe.noisy.chance_of_choice": lambda: (
        noisy.chance_of_choice,
        {"clean": x(6, 4), "noisy": x(6, 4), "scale": x(6, 4).exp(), "top_k": 2},
    ),
    "moe.routing.dense_gates": lambda: (moe.dense_gates, {"routing": routing()}),
    "moe.routing.expert_counts": lambda: (moe.expert_counts, {"routing": routing()}),
    "moe.sigmoid.SigmoidRouter": lambda: (
        moe.SigmoidRouter,
        {
            "d_model": 8,
            "n_experts": 4,
            "top_k": 2,
            "routed_scale": 2.5,
            "groups": moe.Groups(2, 1),
        },
    ),
    "moe.sigmoid.SigmoidRouter.forward": lambda: (
        moe.SigmoidRouter(8, 4, 2),
        {"x": x(6, 8)},
    ),
    "moe.sigmoid.SigmoidRouter.update_bias": lambda: (
        moe.SigmoidRouter(8, 4, 2).update_bias,
        {"load": ids(4), "speed": 0.001},
    ),
    "moe.softmax.SoftmaxTopKRouter": lambda: (
        moe.SoftmaxTopKRouter,
        {
            "d_model": 8,
            "n_experts": 4,
            "top_k": 2,
            "routed_scale": 2.5,
            "groups": moe.Groups(2, 1),
        },
    ),
    "moe.softmax.SoftmaxTopKRouter.forward": lambda: (
        moe.SoftmaxTopKRouter(8, 4, 2),
        {"x": x(6, 8)},
    ),
    "moe.softmax.SwitchRouter": lambda: (
        moe.SwitchRouter,
        {"d_model": 8, "n_experts": 4},
    ),
    # Fading memory
    "fading.influence": lambda: (
        after(fading.influence, fading.CellReader(cells.GruCell(8, 6))),
        {"x": x(1, 5, 8), "t": 2},
    ),
    "fading.influence (of a function)": lambda: (
        fading.influence,
        {"read": lambda x: x.cumsum(1), "x": x(1, 5, 8)},
    ),
    "fading.CellReader": lambda: (fading.CellReader, {"cell": cells.GruCell(8, 6)}),
    "fading.CellReader.forward": lambda: (
        fading.CellReader(cells.GruCell(8, 6)),
        {"x": x(2, 5, 8)},
    ),
    "fading.AttentionReader": lambda: (fading.AttentionReader, {"layer": LAYER}),
    "fading.AttentionReader.forward": lambda: (
        fading.AttentionReader(LAYER),
        {"x": x(2, 5, 8)},
    ),
    "fading.equal_readers": lambda: (
        fading.equal_readers,
        {"d_in": 32, "n_heads": 4},
    ),
    "fading.equal_width": lambda: (
        fading.equal_width,
        {"kind": cells.GruCell, "d_in": 8, "parameters": 800, "beside": 9},
    ),
    "dependence.longest_chain": lambda: (
        dependence.longest_chain,
        {"output": nn.Linear(8, 8)(x(2, 5, 8))},
    ),
    "dependence.layers_to_reach": lambda: (
        dependence.layers_to_reach,
        {"layers": [LAYER], "x": x(1, 5, 8)},
    ),
    "dependence.WordConvolution": lambda: (
        dependence.WordConvolution,
        {"d_model": 8, "width": 3, "dilation": 3},
    ),
    "dependence.WordConvolution.forward": lambda: (
        dependence.WordConvolution(8, 3),
        {"x": x(2, 5, 8)},
    ),
    "dependence.WindowedAttention": lambda: (
        dependence.WindowedAttention,
        {"d_model": 8, "width": 3},
    ),
    "dependence.WindowedAttention.forward": lambda: (
        dependence.WindowedAttention(8, 3),
        {"x": x(2, 5, 8)},
    ),
    "dependence.table_layer": lambda: (
        dependence.table_layer,
        {"kind": "convolutional", "d_model": 8, "width": 3, "number": 2},
    ),
    # Recurrence
    "recurrent.alignment.BahdanauAttention": lambda: (
        alignment.BahdanauAttention,
        {"d_query": 6, "d_memory": 8, "d_attention": 5},
    ),
    "recurrent.alignment.BahdanauAttention.keys": lambda: (
        BAHDANAU.keys,
        {"annotations": x(2, 5, 8)},
    ),
    "recurrent.alignment.BahdanauAttention.forward": lambda: (
        BAHDANAU,
        {
            "query": x(2, 6),
            "annotations": x(2, 5, 8),
            "keep": keep(2, 5),
            "keys": x(2, 5, 5),
        },
    ),
    "recurrent.alignment.record_alignment": lambda: (
        opened(alignment.record_alignment),
        {"model": BAHDANAU},
    ),
    "recurrent.cells.unroll": lambda: (
        cells.unroll,
        {
            "cell": cells.LstmCell(8, 6),
            "x": x(2, 5, 8),
            "state": x(2, 12),
            "keep": keep(2, 5),
        },
    ),
    "recurrent.seq2seq.Encoder": lambda: (
        seq2seq.Encoder,
        {
            "embedding": nn.Embedding(9, 8),
            "cell": cells.GruCell(8, 6),
            "backward_cell": cells.GruCell(8, 6),
            "activation": nn.Tanh(),
        },
    ),
    "recurrent.seq2seq.Encoder.forward": lambda: (
        built("seq2seq").encoder,
        {"src": ids(2, 5), "keep": keep(2, 5)},
    ),
    "recurrent.seq2seq.Decoder": lambda: (
        seq2seq.Decoder,
        {
            "embedding": nn.Embedding(9, 4),
            "cell": cells.GruCell(12, 6),
            "head": nn.Linear(14, 9),
            "attention": BAHDANAU,
            "activation": nn.Tanh(),
        },
    ),
    "recurrent.seq2seq.Decoder.forward": lambda: (
        built("seq2seq").decoder,
        {
            "tgt": ids(2, 3),
            "encoded": built("seq2seq").encode(ids(2, 5)),
            "encoded_keep": keep(2, 5),
            "carry": built("seq2seq").new_caches(),
            "keep": keep(2, 3),
        },
    ),
    "recurrent.seq2seq.TiedHead": lambda: (
        seq2seq.TiedHead,
        {"embedding": nn.Embedding(9, 4), "d_in": 6},
    ),
    "recurrent.seq2seq.TiedHead.forward": lambda: (
        seq2seq.TiedHead(nn.Embedding(9, 4), 6),
        {"x": x(2, 3, 6)},
    ),
    "recurrent.seq2seq.Seq2Seq": lambda: (
        seq2seq.Seq2Seq,
        {
            "encoder": built("seq2seq").encoder,
            "decoder": built("seq2seq").decoder,
            "bridge": nn.Linear(6, 6),
        },
    ),
    "recurrent.seq2seq.Seq2Seq.encode": lambda: (
        built("seq2seq").encode,
        {"src": ids(2, 5), "keep": keep(2, 5)},
    ),
    "recurrent.seq2seq.Seq2Seq.decode": lambda: (
        built("seq2seq").decode,
        {
            "tgt": ids(2, 3),
            "memory": built("seq2seq").encode(ids(2, 5)),
            "memory_keep": keep(2, 5),
            "caches": built("seq2seq").new_caches(),
            "tgt_keep": keep(2, 3),
        },
    ),
    "recurrent.seq2seq.Seq2Seq.forward": lambda: (
        built("seq2seq"),
        {
            "src": ids(2, 5),
            "tgt": ids(2, 3),
            "src_keep": keep(2, 5),
            "tgt_keep": keep(2, 3),
        },
    ),
    "recurrent.seq2seq.Seq2Seq.start": lambda: (
        built("seq2seq").start,
        {"src": ids(2, 5), "keep": keep(2, 5)},
    ),
    "recurrent.seq2seq.Seq2Seq (step)": lambda: (
        built("seq2seq").start(ids(2, 5)),
        {"ids": ids(2, 3)},
    ),
}
for kind in ("ElmanCell", "GruCell", "LstmCell"):
    width = 12 if kind == "LstmCell" else 6
    CALLS[f"recurrent.cells.{kind}"] = lambda kind=kind: (
        getattr(cells, kind),
        {"d_in": 8, "d_hidden": 6},
    )
    CALLS[f"recurrent.cells.{kind} (called)"] = lambda kind=kind, width=width: (
        getattr(cells, kind)(8, 6),
        {"x": x(2, 8), "state": x(2, width)},
    )

# Models
for kind, label in {
    "gpt": "gpt.Gpt",
    "llama": "llama.Llama",
    "mistral": "llama.Llama (window)",
    "mixtral": "mixtral.Mixtral",
    "v2": "deepseek.DeepSeek",
    "v3": "deepseek.DeepSeek (v3)",
}.items():

    def decoder(kind: str, method: str = "forward") -> Call:
        model = built(kind)
        tokens, store = ids(2, 3), model.new_caches()
        model(ids(2, 2), store)
        return getattr(model, method), {
            "tokens": tokens,
            "caches": store,
            "keep": keep(2, 5),
            "positions": torch.arange(2, 5),
        }

    name, _, variant = f"models.{label}".partition(" ")
    CALLS |= {
        f"{name} {variant}".strip(): lambda kind=kind: (
            type(built(kind)),
            {"config": built(kind).config},
        ),
        f"{name}.forward {variant}".strip(): lambda kind=kind: decoder(kind),
        f"{name}.hidden {variant}".strip(): lambda kind=kind: decoder(kind, "hidden"),
        f"{name}.logits {variant}".strip(): lambda kind=kind: (
            built(kind).logits,
            {"hidden": x(2, 3, 8)},
        ),
        f"{name}.new_caches {variant}".strip(): lambda kind=kind: (
            built(kind).new_caches,
            {"capacity": 5},
        ),
    }
for kind, label in {"t5": "t5.T5", "2017": "transformer2017.Transformer"}.items():

    def decode(kind: str) -> Call:
        model = built(kind)
        store, memory = model.new_caches(), model.encode(ids(2, 5))
        model.decode(ids(2, 2), memory, None, store)
        return model.decode, {
            "tgt": ids(2, 3),
            "memory": memory,
            "memory_keep": keep(2, 5),
            "caches": store,
            "keep": keep(2, 5),
        }

    CALLS |= {
        f"models.{label}": lambda kind=kind: (
            type(built(kind)),
            {"config": built(kind).config},
        ),
        f"models.{label}.forward": lambda kind=kind: (
            built(kind),
            {
                "src": ids(2, 5),
                "tgt": ids(2, 3),
                "src_keep": keep(2, 5),
                "tgt_keep": keep(2, 3),
            },
        ),
        f"models.{label}.encode": lambda kind=kind: (
            built(kind).encode,
            {"src": ids(2, 5), "keep": keep(2, 5)},
        ),
        f"models.{label}.decode": lambda kind=kind: decode(kind),
        f"models.{label}.new_caches": lambda kind=kind: (built(kind).new_caches, {}),
    }
CALLS |= {
    "models.bert.BertEmbeddings": lambda: (
        BertEmbeddings,
        {"config": built("bert").config},
    ),
    "models.bert.BertEmbeddings.forward": lambda: (
        built("bert").embeddings,
        {"tokens": ids(2, 3), "segments": ids(2, 3, below=2)},
    ),
    "models.bert.Bert": lambda: (Bert, {"config": built("bert").config}),
    "models.bert.Bert.forward": lambda: (
        built("bert"),
        {"tokens": ids(2, 3), "segments": ids(2, 3, below=2), "keep": keep(2, 3)},
    ),
    "models.bert.Bert.pooled": lambda: (built("bert").pooled, {"hidden": x(2, 3, 8)}),
    "models.bert.MaskedLM": lambda: (MaskedLM, {"config": built("bert").config}),
    "models.bert.MaskedLM.forward": lambda: (
        built("mlm"),
        {"tokens": ids(2, 3), "segments": ids(2, 3, below=2), "keep": keep(2, 3)},
    ),
    "models.bert.MaskedLM.logits": lambda: (
        built("mlm").logits,
        {"hidden": x(2, 3, 8)},
    ),
}

# Practice
REQUEST = {"max_new": 2, "stop": (3,)}
CALLS |= {
    "decoding.beam.beam_search": lambda: (
        decoding.beam_search,
        {
            "step": step_of(),
            "prompt": ids(2, 3),
            "beams": 2,
            **REQUEST,
            "alpha": 0.6,
            "pad": 0,
        },
    ),
    "decoding.beam.length_penalty": lambda: (
        beam.length_penalty,
        {"length": 3, "alpha": 0.6},
    ),
    "decoding.generate.greedy": lambda: (
        decoding.greedy,
        {"step": step_of(), "prompt": ids(2, 3), **REQUEST, "pad": 0},
    ),
    "decoding.generate.sample": lambda: (
        decoding.sample,
        {
            "step": step_of(),
            "prompt": ids(2, 3),
            **REQUEST,
            "choose": [decoding.temperature(0.7)],
            "pad": 0,
            "generator": drawn(),
        },
    ),
    "decoding.generate.stream": lambda: (
        lambda **named: list(generate.stream(**named)),
        {
            "step": step_of(),
            "prompt": ids(2, 3),
            **REQUEST,
            "choose": decoding.top_k(2),
            "pad": 0,
        },
    ),
    "decoding.speculative.speculative": lambda: (
        decoding.speculative,
        {
            "step": step_of(),
            "draft_step": step_of("llama", cached=False),
            "prompt": ids(1, 3),
            "max_new": 3,
            "draft_length": 2,
            "choose": (),
            "stop": (3,),
            "generator": drawn(),
        },
    ),
    "decoding.sampling.temperature": lambda: (decoding.temperature, {"t": 0.7}),
    "decoding.sampling.top_k": lambda: (decoding.top_k, {"k": 3}),
    "decoding.sampling.top_p": lambda: (decoding.top_p, {"p": 0.7}),
    "decoding.sampling.min_p": lambda: (decoding.min_p, {"p": 0.1}),
    "decoding.sampling.scale_by_temperature": lambda: (
        decoding.scale_by_temperature,
        {"logits": x(2, 9), "t": 0.7},
    ),
    "decoding.sampling.top_k_filter": lambda: (
        decoding.top_k_filter,
        {"logits": x(2, 9), "k": 3},
    ),
    "decoding.sampling.top_p_filter": lambda: (
        decoding.top_p_filter,
        {"logits": x(2, 9), "p": 0.7},
    ),
    "decoding.sampling.min_p_filter": lambda: (
        decoding.min_p_filter,
        {"logits": x(2, 9), "p": 0.1},
    ),
    "decoding.sampling.nucleus": lambda: (
        decoding.nucleus,
        {"probs": x(2, 9).softmax(-1), "p": 0.7},
    ),
    "decoding.sampling.probabilities": lambda: (
        decoding.probabilities,
        {"logits": x(2, 9), "choose": [decoding.top_k(2)]},
    ),
    "decoding.sampling.draw": lambda: (
        decoding.draw,
        {"logits": x(2, 9), "choose": [decoding.top_k(2)], "generator": drawn()},
    ),
    "decoding.sampling.check_choices": lambda: (
        sampling.check_choices,
        {"choose": [decoding.top_k(2)]},
    ),
    "decoding.steps.check_request": lambda: (
        steps.check_request,
        {"step": step_of(), "prompt": ids(2, 3), **REQUEST, "pad": 0},
    ),
    "decoding.steps.check_ids_below": lambda: (
        steps.check_ids_below,
        {"stop": (3,), "pad": 0, "size": 9},
    ),
    "decoding.steps.check_whole": lambda: (
        after(steps.check_whole, "k", least=1),
        {"value": 3},
    ),
    "decoding.steps.CachedStep": lambda: (
        decoding.CachedStep,
        {
            "model": built("gpt"),
            "caches": built("gpt").new_caches(),
            "keep": keep(2, 3),
        },
    ),
    "decoding.steps.UncachedStep": lambda: (
        decoding.UncachedStep,
        {"model": built("gpt"), "keep": keep(2, 3)},
    ),
    "filling.draw_gaps": lambda: (
        filling.draw_gaps,
        {"length": 9, "generator": drawn(), "rate": 0.3, "mean_span": 2.0},
    ),
    "filling.spans": lambda: (filling.spans, {"gone": keep(2, 5)[0]}),
    "filling.fill_at_once": lambda: (
        filling.fill_at_once,
        {"model": built("mlm"), "ids": ids(2, 5), "gone": keep(2, 5), "mask_id": 3},
    ),
    "filling.fill_surest_first": lambda: (
        filling.fill_surest_first,
        {"model": built("mlm"), "ids": ids(2, 5), "gone": keep(2, 5), "mask_id": 3},
    ),
    "filling.fill_from_left": lambda: (
        filling.fill_from_left,
        {
            "step": step_of(),
            "ids": ids(2, 5),
            "gone": ~keep(2, 5).flip(1),
            "banned": (3,),
        },
    ),
    "filling.rerank": lambda: (
        filling.rerank,
        {"step": step_of(), "before": ids(3), "after": ids(2), "candidates": 4},
    ),
    "filling.name_gaps": lambda: (
        filling.name_gaps,
        {"ids": ids(5), "gone": keep(2, 5)[0], "sentinels": [6, 7, 8]},
    ),
    "filling.read_spans": lambda: (
        filling.read_spans,
        {"written": [6, 1, 2, 7], "sentinels": [6, 7]},
    ),
    "ngrams.KneserNey": lambda: (
        ngrams.KneserNey,
        {"tokens": ids(20), "order": 3, "vocab_size": 9, "discount": 0.5},
    ),
    "ngrams.KneserNey.probabilities": lambda: (
        counted().probabilities,
        {"context": [3, 1]},
    ),
    "ngrams.KneserNey.surprise": lambda: (counted().surprise, {"tokens": ids(6)}),
    "ngrams.KneserNey.loss": lambda: (counted().loss, {"tokens": ids(6)}),
    "ngrams.between": lambda: (
        ngrams.between,
        {"model": counted(), "left": ids(4, 2), "right": ids(4, 2)},
    ),
    "ngrams.estimated_discount": lambda: (
        ngrams.estimated_discount,
        {"counts": ids(20)},
    ),
    "objectives.cloze.masked_lm_batch": lambda: (
        objectives.masked_lm_batch,
        {
            "ids": ids(2, 5),
            "vocab_size": 9,
            "mask_id": 3,
            "special_ids": [0, 1],
            "generator": drawn(),
            "rate": 0.5,
        },
    ),
    "objectives.cloze.span_corruption": lambda: (
        objectives.span_corruption,
        {
            "ids": ids(12),
            "sentinels": [20, 21, 22, 23],
            "generator": drawn(),
            "rate": 0.3,
            "mean_span": 2.0,
            "eos": 1,
        },
    ),
    "objectives.cloze.fill_spans": lambda: (
        objectives.fill_spans,
        {
            "inputs": torch.tensor([1, 20, 2]),
            "targets": torch.tensor([20, 5, 21]),
            "sentinels": [20, 21],
        },
    ),
    "objectives.losses.cross_entropy": lambda: (
        objectives.cross_entropy,
        {"logits": x(2, 3, 9), "labels": ids(2, 3)},
    ),
    "objectives.losses.label_smoothed": lambda: (
        objectives.label_smoothed,
        {"logits": x(2, 3, 9), "targets": ids(2, 3), "pad": 0, "eps": 0.1},
    ),
    "objectives.losses.masked_lm": lambda: (
        objectives.masked_lm,
        {"logits": x(2, 3, 9), "labels": ids(2, 3)},
    ),
    "objectives.losses.causal_lm": lambda: (
        objectives.causal_lm,
        {"logits": x(2, 3, 9), "tokens": ids(2, 3), "keep": keep(2, 3)},
    ),
    "objectives.projected.projected_cross_entropy": lambda: (
        objectives.projected_cross_entropy,
        {"hidden": x(2, 3, 8), "weight": x(9, 8), "labels": ids(2, 3)},
    ),
    "objectives.losses.perplexity": lambda: (
        objectives.perplexity,
        {"loss": objectives.Loss(torch.tensor(1.0), 2)},
    ),
    "objectives.losses.bits_per_byte": lambda: (
        objectives.bits_per_byte,
        {"loss": objectives.Loss(torch.tensor(1.0), 2), "n_bytes": 5},
    ),
    "objectives.losses.check_guesses": lambda: (
        objectives.losses.check_guesses,
        {"logits": x(2, 3, 9), "labels": ids(2, 3)},
    ),
    "objectives.shifts.next_tokens": lambda: (
        objectives.next_tokens,
        {"tokens": ids(2, 3), "keep": keep(2, 3)},
    ),
    "objectives.shifts.prefix_lm_batch": lambda: (
        objectives.prefix_lm_batch,
        {"tokens": ids(2, 5), "keep": keep(2, 5), "generator": drawn()},
    ),
    "objectives.shifts.seq2seq_shift": lambda: (
        objectives.seq2seq_shift,
        {"labels": ids(2, 3), "start": 0, "pad": 0},
    ),
    "training.averages.EMA": lambda: (
        training.EMA,
        {"model": nn.Linear(2, 2), "decay": 0.9},
    ),
    "training.fit.fit": fit_call,
    "training.optimisers.adamw": lambda: (
        training.adamw,
        {"model": nn.Linear(2, 2), "lr": 0.1, "weight_decay": 0.1, "eps": 1e-8},
    ),
    "training.schedules.constant": lambda: (training.constant, {"warmup": 2}),
    "training.schedules.linear": lambda: (
        training.linear,
        {"warmup": 2, "total": 9, "floor": 0.1},
    ),
    "training.schedules.cosine": lambda: (
        training.cosine,
        {"warmup": 2, "total": 9, "floor": 0.1},
    ),
    "training.schedules.inverse_sqrt": lambda: (training.inverse_sqrt, {"warmup": 2}),
    "training.schedules.noam": lambda: (training.noam, {"d_model": 8, "warmup": 2}),
    # The page's example
    "trace.example.Example": lambda: (
        trace.Example,
        {"words": ("a", "b"), **{n: torch.eye(2) for n in TRACE}},
    ),
    "trace.example.Example.append": lambda: (
        trace.CATS.append,
        {"word": "so", "x": [1.0, 0.0, 0.0, 1.0]},
    ),
    "trace.example.Example.reorder": lambda: (
        trace.CATS.reorder,
        {"order": [2, 0, 1]},
    ),
    "trace.formula.attention": lambda: (
        trace.attention,
        {"example": trace.CATS, "n_heads": 2, "mask": Causal()},
    ),
    "trace.formula.layer": lambda: (
        trace.layer,
        {"example": trace.CATS, "n_heads": 2},
    ),
    "trace.before.recurrence": lambda: (
        trace.recurrence,
        {"example": trace.CATS, "network": trace.RECURRENCE},
    ),
    "trace.model.positions": lambda: (
        trace.positions,
        {"example": trace.CATS, "n_heads": 2},
    ),
    "trace.model.block": lambda: (
        trace.block,
        {
            "example": trace.CATS,
            "n_heads": 2,
            "network": trace.NETWORK,
            "residual": post_norm,
            "mask": Causal(),
        },
    ),
    "trace.model.cross": lambda: (
        trace.cross,
        {"example": trace.CATS, "target": trace.TARGET, "n_heads": 2},
    ),
    "trace.model.routed": lambda: (
        trace.routed,
        {"example": trace.CATS, "network": trace.NETWORK},
    ),
    "trace.variants.cached": lambda: (
        trace.cached,
        {"example": trace.CATS_DAILY, "n_heads": 2},
    ),
    "trace.variants.rotary": lambda: (
        trace.rotary,
        {"example": trace.CATS_DAILY, "n_heads": 2, "mask": Causal()},
    ),
    "trace.variants.shared": lambda: (
        trace.shared,
        {"example": trace.CATS, "mask": Causal()},
    ),
    "trace.variants.tiles": lambda: (
        trace.tiles,
        {"example": trace.CATS, "block_size": 2, "mask": Causal()},
    ),
    "trace.variants.latent": lambda: (trace.latent, {"example": trace.CATS, "rank": 2}),
}
TRACE = "X", "W_Q", "W_K", "W_V", "W_O"
for kind, cached in (("CachedStep", True), ("UncachedStep", False)):

    def read(cached: bool):
        step = step_of(cached=cached)
        step(ids(2, 3))
        return step

    CALLS |= {
        f"decoding.steps.{kind} (called)": lambda cached=cached: (
            read(cached),
            {"ids": ids(2, 1)},
        ),
        f"decoding.steps.{kind}.last": lambda cached=cached: (
            read(cached).last,
            {"ids": ids(2, 2), "count": 1},
        ),
        f"decoding.steps.{kind}.truncate": lambda cached=cached: (
            read(cached).truncate,
            {"n": 2},
        ),
        f"decoding.steps.{kind}.reorder": lambda cached=cached: (
            read(cached).reorder,
            {"rows": torch.tensor([1, 0])},
        ),
    }
