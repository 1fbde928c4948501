"""What is read out of a package's source of the names it takes from another."""

from pathlib import Path
from textwrap import dedent

import pytest

from harness.probes._arguments import Arguments, Takes
from harness.probes._sources import Sources, Use


def uses(tmp_path: Path, package: str = "up", **files: str) -> list[Use]:
    """Uses of `up` in a package `mine` of the given modules (`sub__mod` is `mine.sub.mod`)."""
    folder = tmp_path / "mine"
    for name, text in {"__init__": "", **files}.items():
        path = folder.joinpath(*(part or "__init__" for part in name.split("__"))).with_suffix(".py")
        path = folder / "__init__.py" if name == "__init__" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return Sources("mine", folder).uses(package)


def named(found: list[Use]) -> list[tuple[str, str]]:
    return [(name, use.where) for use in found for name in use.names]


def the_call(found: list[Use]) -> Use:
    [use] = [use for use in found if use.call is not None]
    return use


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import up", ["up"]),
        ("import up.deep.er", ["up.deep.er"]),
        ("import up.deep as d\nd.f", ["up.deep", "up.deep:f"]),
        ("import up.deep\nup.deep.f", ["up.deep", "up:deep.f"]),
        ("from up import a, b as c\nc.x.y", ["up:a", "up:b", "up:b.x.y"]),
        ("from up.deep import f", ["up.deep:f"]),
        ("from up import *", ["up"]),
        ("import upper\nfrom uphill import a\na.b", []),
        ("up = 3\nup.f", []),
    ],
)
def test_names_as_they_are_imported_and_reached_for(tmp_path: Path, line: str, names: list[str]) -> None:
    assert named(uses(tmp_path, m=line)) == [(name, "mine.m") for name in names]


def test_a_function_imports_for_itself(tmp_path: Path) -> None:
    found = uses(tmp_path, m="class A:\n    async def f(self):\n        from up import g\n        return lambda: g.x")
    assert named(found) == [("up:g", "mine.m:A.f"), ("up:g.x", "mine.m:A.f")]


def test_what_is_imported_for_type_checkers_alone_is_not_used(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import up.a\nelse:\n    import up.b"
    assert named(uses(tmp_path, m=text)) == [("up.b", "mine.m")]


def test_a_parameter_or_a_local_hides_an_import(tmp_path: Path) -> None:
    found = uses(tmp_path, m="import up as u\ndef f(u):\n    u.a\ndef g():\n    u = 1\n    u.b\ndef h():\n    u.c")
    assert named(found) == [("up", "mine.m"), ("up:c", "mine.m:h")]


def test_names_of_a_class_are_hidden_from_its_methods(tmp_path: Path) -> None:
    found = uses(tmp_path, m="import up as u\nclass A:\n    u = 3\n    def f(self):\n        u.a")
    assert named(found) == [("up", "mine.m"), ("up:a", "mine.m:A.f")]


def test_names_are_followed_through_the_package(tmp_path: Path) -> None:
    found = uses(
        tmp_path,
        a="from up.deep import f as g",
        sub__="from ..a import g\nfrom . import other",
        sub__other="from up import z",
        m="from mine.sub import g, other\ng(1)\nother.z.t",
    )
    assert named(found) == [
        ("up.deep:f", "mine.a"),
        ("up.deep:f", "mine.m"),
        ("up:z.t", "mine.m"),
        ("up:z", "mine.sub.other"),
    ]


def test_re_exports_in_a_circle_end(tmp_path: Path) -> None:
    assert uses(tmp_path, a="from mine.b import x", b="from mine.a import x", m="from mine.a import x\nx.y") == []


def test_the_nearest_branch_counts(tmp_path: Path) -> None:
    text = """
        if flag:
            from up import one as f
            f(1)
        else:
            from up import two as f
            f(2)
        f(3)
    """
    calls = [use.names for use in uses(tmp_path, m=text) if use.call]
    assert calls == [("up:one",), ("up:two",), ("up:one", "up:two")]


def test_what_happens_where_a_name_is_absent(tmp_path: Path) -> None:
    text = """
        try:
            from up import a
        except ImportError:
            a = None
        try:
            from up import b
        except ImportError:
            print("no up")
            raise
        if version > 3:
            from up import c
        else:
            from up import d
        try:
            from up import e
        except KeyError:
            pass
        has_f = hasattr(up, "f") and up.f
        import up
    """
    found = {use.names[0]: (use.otherwise, use.own) for use in uses(tmp_path, m=text)}
    assert found["up:a"] == (("except ImportError",), True)
    assert found["up:b"] == ((), False)
    assert found["up:c"] == (("if version > 3",), False)
    assert found["up:d"] == (("if not (version > 3)",), False)
    assert found["up:e"] == ((), False)
    assert found["up:f"] == (("if hasattr(up, 'f')",), False)


def test_a_fallback_of_its_own_is_told(tmp_path: Path) -> None:
    text = "try:\n    from up import f\nexcept ImportError:\n    def f(): pass\ndef g():\n    f()"
    use = the_call(uses(tmp_path, m=text))
    assert (use.names, use.own, use.where) == (("up:f",), True, "mine.m:g")


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("f()", Arguments(0, ())),
        ("f(1, 2, a=3)", Arguments(2, ("a",))),
        ("f(1, *rest, **more)", Arguments(1, (), (), ("*rest", "**more"))),
        ("f(**{'a': 1, 'b': 2})", Arguments(0, (), ("a", "b"))),
        ("f(**({} if x else {'a': 1}))", Arguments(0, (), ("a",))),
        ("f(**dict(a=1))", Arguments(0, (), ("a",))),
        (
            "d = {'a': 1}\nd['b'] = 2\nd.update({'c': 3}, e=4)\nd.setdefault('g', 1)\nf(**d)",
            Arguments(0, (), tuple("abceg")),
        ),
        ("d = {'a': 1}\nd.update(other)\nf(**d)", Arguments(0, (), ("a",), ("**d",))),
        ("d = {key: 1}\nf(**d)", Arguments(0, (), (), ("**d",))),
        ("d = {'a': 1}\nd[key] = 1\nf(**d)", Arguments(0, (), ("a",), ("**d",))),
        ("d = {'a': 1}\nd = other()\nf(**d)", Arguments(0, (), ("a",), ("**d",))),
        ("for d in ds:\n    f(**d)", Arguments(0, (), (), ("**d",))),
        ("d = {'a': 1}\nfor d in ds:\n    f(**d)", Arguments(0, (), ("a",), ("**d",))),
    ],
)
def test_what_a_call_gives(tmp_path: Path, line: str, given: Arguments) -> None:
    body = "".join(f"    {text}\n" for text in line.splitlines())
    assert the_call(uses(tmp_path, m=f"from up import f\ndef g(ds, other, key, x, rest, more):\n{body}")).call == given


def test_a_dictionary_that_is_a_parameter_may_hold_anything(tmp_path: Path) -> None:
    found = uses(tmp_path, m="from up import f\ndef g(d):\n    d['a'] = 1\n    f(**d)")
    assert the_call(found).call == Arguments(0, (), ("a",), ("**d",))


def test_a_call_of_the_method_of_a_base(tmp_path: Path) -> None:
    text = """
        from up import Base
        class A(Base):
            def f(self):
                super().f(1)
        class B(A):
            def f(self):
                super().f(2)
    """
    use = the_call(uses(tmp_path, m=text))
    assert (use.names, use.bound, use.call) == (("up:Base.f",), True, Arguments(1, ()))


def test_a_function_put_in_the_place_of_another(tmp_path: Path) -> None:
    text = """
        from up import A, mod
        def patched(self, x, *rest, y=1): pass
        def open_ended(**anything): pass
        def patch():
            def within(self): pass
            A.f = patched
            mod.g = open_ended
            A.h = within
            A.flag = True
    """
    replaced = {use.names[0]: use.replaced for use in uses(tmp_path, m=text) if use.replaced}
    assert replaced == {
        "up:A.f": Takes("mine.m:patched", ("self", "x", "y"), False),
        "up:mod.g": Takes("mine.m:open_ended", (), True),
        "up:A.h": Takes("mine.m:within", ("self",), False),
    }


def test_a_file_that_does_not_parse_is_no_silence(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError):
        uses(tmp_path, m="def")
