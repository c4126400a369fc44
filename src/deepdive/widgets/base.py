# SPDX-License-Identifier: MIT
"""How does one figure live in JupyterLab, on a page with no kernel, and on paper?

A widget of this book is a Python file and an ES module of the same name. Python
computes the numbers (`data`), the reader's choices travel in `state`, and the module
draws them. The same module runs in JupyterLab through anywidget and on the static page
through `book/_static/widget-host.js`. For readers without scripts, for print and for
PDF, Python also draws the first frame as an SVG.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

HERE = Path(__file__).parent

_IMPORT = re.compile(r'^import\s*\{[^}]*\}\s*from\s*"\./common\.js";[ \t]*\n', re.M)
_DECLARED = re.compile(
    r"^(?:export\s+)?(?:async\s+)?(?:function|const|let|class)\s+(\w+)", re.M
)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

# Room is kept before the script arrives, so that nothing jumps when it does.
_RESERVE = (
    "<style>.dd-figure{margin:1.5rem 0;min-height:var(--dd-height)}"
    ".dd-figure figcaption{margin-top:.6rem}.dd-figure>div{scroll-margin-top:4rem}"
    ".dd-frame{overflow-x:auto}.dd-frame svg{display:block;max-width:100%;height:auto}"
    "@media(max-width:640px){.dd-figure{min-height:var(--dd-height-narrow)}}"
    "@media(min-width:641px) and (max-width:760px),(min-width:1024px) and "
    "(max-width:1130px){.dd-figure{min-height:var(--dd-height-mid)}}"
    "@media(scripting:none),print{.dd-figure{min-height:0}}</style>"
)


@cache
def bundle(script: Path) -> str:
    """Join `common.js` and a widget's own module into one module without imports.

    Args:
        script: the widget's `.js`, whose first statement imports from "./common.js".

    Raises:
        ValueError: the import is missing, another import is left, or both files
            declare the same name at top level.
    """
    common = (HERE / "common.js").read_text(encoding="utf-8")
    own = script.read_text(encoding="utf-8")
    own, found = _IMPORT.subn("", own, count=1)
    if not found:
        raise ValueError(f'{script.name} must import {{ … }} from "./common.js"')
    if re.search(r"^import\b", own, re.M):
        raise ValueError(f"{script.name} may import nothing but ./common.js")
    twice = set(_DECLARED.findall(common)) & set(_DECLARED.findall(own))
    if twice:
        raise ValueError(
            f"{script.name} declares {', '.join(sorted(twice))}, as common.js does"
        )
    if re.search(r"</script|<!--", common + own, re.I):
        raise ValueError(f"{script.name} may not contain '</script' or '<!--'")
    return re.sub(r"^export\s+(?=\w)", "", common, flags=re.M) + "\n" + own


@cache
def stylesheet(script: Path) -> str:
    """`common.css`, followed by the widget's own `.css` where there is one."""
    own = script.with_suffix(".css")
    parts = [HERE / "common.css", *([own] if own.exists() else [])]
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def encode24(values: Iterable[float]) -> str:
    """Pack numbers of [0, 1] into 3 bytes each, as base64; steps of 6·10⁻⁸.

    `decode24` of `common.js` is the inverse.

    Raises:
        ValueError: a value lies outside [0, 1].
    """
    packed = bytearray()
    for value in values:
        number = float(value)
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"encode24 takes numbers of [0, 1], got {number!r}")
        packed += round(number * 0xFFFFFF).to_bytes(3, "little")
    return base64.b64encode(bytes(packed)).decode("ascii")


class Widget(anywidget.AnyWidget):
    """A figure that computes in Python, answers the reader in the page, and prints.

    A subclass sets `label`, `height`, draws `frame()` and calls `super().__init__` with
    what it computed. Its module stands beside its file: `x.py` and `x.js` (and `x.css`
    if it needs more style than `common.css` gives).

    Attributes:
        data: what Python computed, as JSON; the page only reads it.
        state: what the reader chose, as small JSON. Set any of its keys from Python:
            the view follows, and keys left out go back to their first value.
        name: unique on its page; `#name=…` in the address restores a state.
        alt: what the first frame shows, in one or two sentences.
        caption: the words under the figure.
        label: the accessible name of the whole figure.
        height: pixels kept free for it on a wide page; `height_mid` where its column is
            650 to 740 px, as on a projector at 150 %; `height_narrow` on a phone.
    """

    data = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    name = traitlets.Unicode().tag(sync=True)
    caption = traitlets.Unicode().tag(sync=True)
    alt = traitlets.Unicode()

    label: ClassVar[str] = ""
    height: ClassVar[int] = 480
    height_mid: ClassVar[int] = 0  # 0: as on a wide page
    height_narrow: ClassVar[int] = 0  # 0: a fifth more than on a wide page

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Attach the module and the style that stand beside the subclass's file."""
        source = getattr(sys.modules.get(cls.__module__), "__file__", None)
        script = Path(source).with_suffix(".js") if source else None
        if script and script.exists() and "_esm" not in cls.__dict__:
            cls._esm = bundle(script)
            cls._css = stylesheet(script)
        super().__init_subclass__(**kwargs)

    def __init__(
        self,
        *,
        data: Mapping[str, Any],
        start: Mapping[str, Any],
        name: str,
        alt: str,
        caption: str,
        state: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the widget.

        Args:
            data: JSON values, no NaN.
            start: every key of the state with its first value; Reset returns here.
            name: lower-case slug, such as "softmax-scale".
            alt: description of the first frame.
            caption: words under the figure.
            state: keys that differ from `start` when the widget is first shown.
            kwargs: passed on to anywidget (such as `layout`).
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"name must be a slug such as 'mask-grid', got {name!r}")
        if not alt.strip():
            raise ValueError(f"{name} needs a description of its first frame (alt)")
        self._start = dict(start)
        super().__init__(
            data=dict(data),
            state=dict(state or {}),
            name=name,
            alt=alt,
            caption=caption,
            **kwargs,
        )

    @traitlets.validate("data")
    def _valid_data(self, proposal: dict[str, Any]) -> dict[str, Any]:
        data = {**proposal["value"], "start": self._start}
        try:
            json.dumps(data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"data of {type(self).__name__}: {error}") from None
        return data

    @traitlets.validate("state")
    def _valid_state(self, proposal: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(proposal["value"]) - set(self._start))
        if unknown:
            raise ValueError(
                f"state of {type(self).__name__} has no {', '.join(unknown)}; "
                f"it has {', '.join(sorted(self._start))}"
            )
        return self.check({**self._start, **proposal["value"]})

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state if it is one that can be drawn; raise ValueError if not."""
        return state

    def frame(self) -> str:
        """Draw the first frame as an SVG that teaches without being touched."""
        raise NotImplementedError(f"{type(self).__name__} draws no first frame")

    def figure(self) -> str:
        """The HTML of the static page: the first frame, ready to be made live."""
        narrow = self.height_narrow or round(self.height * 1.2)
        return (
            f'<figure class="dd-figure" data-model="{self.model_id}" '
            f'data-widget="{self.name}" '
            f'style="--dd-height:{self.height}px;'
            f"--dd-height-mid:{self.height_mid or self.height}px;"
            f'--dd-height-narrow:{narrow}px">'
            f'{_RESERVE}<div class="dd-frame">{self.fallback()}</div>'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )

    def fallback(self) -> str:
        """HTML that stands in the page until, or unless, the script runs."""
        return self.frame()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        """The four forms: live view, page, print, words."""
        bundle_, metadata = super()._repr_mimebundle_(**kwargs)
        bundle_["text/html"] = self.figure()
        bundle_["image/svg+xml"] = self.frame()
        bundle_["text/plain"] = f"{self.label}: {self.alt}"
        return bundle_, metadata
