"""The smallest description of every kind of value that a config may hold (see `harness.probes._values`)."""

from __future__ import annotations

import json

from harness.probes._values import Description

SCALARS: tuple[Description, ...] = (None, False, 0, -1, 2**63, 0.0, -0.0, 0.1, "", "text", "ключ", "\ud800", "\x00")
"""What a JSON scalar says. A lone surrogate is text to Python."""

HASHABLE: tuple[Description, ...] = tuple(
    ["py", text]
    for text in (
        "float('nan')",
        "float('inf')",
        "-float('inf')",
        "PlainEnum.ONE",
        "TextEnum.ONE",
        "StringEnum.ONE",
        "NumberEnum.ONE",
        "Flags.ONE | Flags.TWO",
        "NumberFlags.ONE | NumberFlags.TWO",
        "pkgutil.resolve_name('megatron.core.transformer.enums:AttnBackend.flash')",
        "Text('text')",
        "Number(1)",
        "complex(0, 1)",
        "decimal.Decimal('0.1')",
        "datetime.date(2026, 3, 1)",
        "b'\\x00'",
        "pathlib.PurePosixPath('a/b')",
        "torch.bfloat16",
        "torch.device('cpu')",
        "torch.Size([2, 3])",
        "torch.strided",
        "numpy.float16(0.1)",
        "numpy.float64(0.1)",
        "numpy.float64('nan')",
        "numpy.longdouble(0.1)",
        "numpy.int64(1)",
        "numpy.uint64(2**64 - 1)",
        "numpy.bool_(True)",
        "numpy.complex64(1)",
        "numpy.str_('text')",
        "numpy.bytes_(b'text')",
        "numpy.datetime64('2026-03-01')",
        "numpy.datetime64('2026-03-01T00:00:00.000000001')",
        "numpy.timedelta64(1, 's')",
        "numpy.timedelta64('NaT', 's')",
        "type('bfloat16', (numpy.float32,), {})(0.5)",
        "function",
        "lambda: None",
        "len",
        "functools.partial(function)",
        "'text'.upper",
        "Callable()",
        "Callable().__call__",
        "Config",
        "int",
        "Ellipsis",
        "object()",
        "Convertible()",
        "types",
        "process_group()",
    )
)
"""Values that can also be a key."""

LEAVES: tuple[Description, ...] = (
    *HASHABLE,
    ["py", "2 ** 20000"],
    ["py", "bytearray(b'\\x00')"],
    ["py", "torch.arange(2)"],
    ["py", "torch.tensor(0.5, dtype=torch.bfloat16)"],
    ["py", "numpy.arange(2)"],
    ["py", "numpy.array(0.5)"],
    ["py", "omegaconf.OmegaConf.create([1])"],
    ["py", "omegaconf.OmegaConf.create({'a': 1})"],
    ["py", "collections.defaultdict(list, a=[1])"],
    ["py", "collections.deque([1])"],
    ["py", "types.SimpleNamespace(a=1)"],
    ["set", 1],
    ["frozenset", 1],
    ["py", "range(2)"],
)
"""Values without described parts."""

LIKELY: tuple[Description, ...] = tuple(
    ["py", text]
    for text in (
        "float('nan')",
        "PlainEnum.ONE",
        "TextEnum.ONE",
        "pkgutil.resolve_name('megatron.core.transformer.enums:AttnBackend.flash')",
        "torch.bfloat16",
        "numpy.float64(0.1)",
        "numpy.int64(1)",
        "function",
        "functools.partial(function)",
    )
)
"""What configs of models really hold besides scalars."""

KEYS: tuple[Description, ...] = (
    *SCALARS,
    *HASHABLE,
    ["tuple", 1, 2],
    ["frozenset", 1],
)
"""Values that a dict takes as a key."""

CONFIGS: tuple[Description, ...] = (
    ["Config", 1],
    ["FrozenConfig", 1],
    ["SlotsConfig", 1],
    ["DerivedConfig", 1, None, None, 2],
    ["UnsetConfig", 1],
    ["RaisingConfig", 1],
    ["Plain", 1],
    ["HookedConfig", 1, ["py", "function"], None, 2],
    ["HookedConfig", ["set"], ["py", "function"]],
    ["HookedConfig", ["py", "types"], ["py", "function"]],
)
"""Configs of every class."""

CONTAINERS: tuple[Description, ...] = (
    *CONFIGS,
    ["list", 1],
    ["tuple", 1, ["tuple", 2]],
    ["dict", "a", 1],
    ["OrderedDict", "a", 1],
    ["Table", "a", 1],
    ["Items", 1],
    ["CallableItems", 1],
    ["Pair", 1, 2],
    ["up", 0],
    ["list", ["up", 0]],
    ["dict", "a", ["up", 0]],
    ["Config", ["up", 0]],
    ["tuple", ["list", 1], ["again", 0]],
    ["deep", 100, "list", 1],
    ["deep", 100, "dict", 1],
    ["deep", 2000, "list", 1],
)
"""Values with described parts, cycles and shared references among them."""

ALIKE: Description = ["dict", 1, "of the number", "1", "of the text"]
"""Two keys that read alike."""

TOP_LEVEL_KEYS: tuple[Description, ...] = (
    *(["fields", key, 1] for key in KEYS),
    ["fields", *ALIKE[1:]],
)
"""Names of fields that are no texts, which only a function that takes a dict can be given."""

PLACES = ("field", "hook", "inside", "key", "name")


def catalogue() -> dict[str, list[tuple[Description, Description]]]:
    """Kind of place → every value, and a config that holds the value there and nothing else of note.

    At `name` stand configs of other classes, whose fields matter.
    """
    everything = (*SCALARS, *LEAVES, *CONTAINERS)
    return {
        "field": [(value, ["Config", value]) for value in everything],
        "hook": [(value, ["HookedConfig", 1, value]) for value in everything],
        "inside": [(value, ["Config", ["list", value]]) for value in everything],
        "key": [(value, ["Config", ["dict", value, 1]]) for value in KEYS] + [(ALIKE, ["Config", ALIKE])],
        "name": [(config, config) for config in CONFIGS],
    }


def name_of(description: Description) -> str:
    """A description as a reader finds it: an expression, or JSON."""
    if isinstance(description, list) and description[0] == "py":
        return str(description[1])
    return json.dumps(description)
