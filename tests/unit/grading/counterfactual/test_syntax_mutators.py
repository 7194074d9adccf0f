"""Quiet mutants of JavaScript, Go, Java and Rust tests, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, apply_mutants
from engine.grading.counterfactual.languages import mutator_of
from engine.grading.counterfactual.selection import tests_by_function as assign

WRAPPED = {
    ".js": "it('works', async (done) => {{\n  {}\n}})\n",
    ".go": 'package a\n\nimport "net/http"\nimport "github.com/stretchr/testify/assert"\n\n'
    "func TestIt(t *testing.T) {{\n\t{}\n}}\n",
    ".java": "import static org.junit.jupiter.api.Assertions.*;\n"
    "class ItTest {{\n    @Test void it() {{\n        {}\n    }}\n}}\n",
    ".rs": "#[test]\nfn it() {{\n    {}\n}}\n",
}


def mutants_of(source: str, ending: str) -> Sequence[Mutant]:
    path = f"tests/it{ending}"
    mutator = mutator_of(path)
    assert mutator is not None
    return mutator.mutants(source.encode(), path)


def changed(body: str, ending: str, kind: MutantKind = MutantKind.VALUE) -> list[str]:
    """Return the bodies of a test with each mutant of a kind."""
    before, _, after = WRAPPED[ending].format("\0").partition("\0")
    source = f"{before}{body}{after}"
    found = [mutant for mutant in mutants_of(source, ending) if mutant.kind is kind]
    edited = [apply_mutants(source.encode(), [mutant]).decode() for mutant in found]
    return [text.removeprefix(before).removesuffix(after) for text in edited]


QUIET = [
    (".js", "expect(f()).toBe(3)", "expect(f()).toBe(4)"),
    (".js", "expect(f()).toEqual([255, true])", "expect(f()).toEqual([254, true])"),
    (".js", "expect(f()).toEqual({a: 'v1', b: x})", "expect(f()).toEqual({a: 'v2', b: x})"),
    (".js", "await expect(f()).resolves.toBe(0.5)", "await expect(f()).resolves.toBe(0.6)"),
    (".js", "expect(f()).toBeTruthy()", "expect(f()).toBeFalsy()"),
    (".js", "expect(f()).not.toContain(x)", "expect(f()).toContain(x)"),
    (".js", "expect(f()).toThrow(/no/)", "expect(f()).not.toThrow(/no/)"),
    (".js", "expect(f()).toThrow(TypeError)", "expect(f()).toThrow(RangeError)"),
    (".js", "expect(f()).toBe(x)", "expect(f()).not.toBe(x)"),
    (".js", "expect(f()).to.deep.equal([9])", "expect(f()).to.deep.equal([8])"),
    (".js", "expect(f()).to.be.true", "expect(f()).to.be.false"),
    (".js", "expect(f()).to.not.include(x)", "expect(f()).to.include(x)"),
    (".js", "f().should.equal('ca')", "f().should.equal('ce')"),
    (".js", "expect(f()).toBe('1.2+5')", "expect(f()).toBe('1.3+5')"),
    (".js", "assert.strictEqual(f(), 7, 'is 7')", "assert.strictEqual(f(), 8, 'is 8')"),
    (".js", "assert.ok(!f())", "assert.ok(f())"),
    (".js", "assert(f() === 10)", "assert(f() === 11)"),
    (".js", "assert.throws(f, TypeError)", "assert.throws(f, RangeError)"),
    (".js", "request(app).get('/').expect(200, done)", "request(app).get('/').expect(201, done)"),
    (".js", "f().then(x => { expect(x).toBe(3); done() })", "f().then(x => { expect(x).toBe(4); done() })"),
    (".js", "await f().then((x) => { assert.equal(x, 3) })", "await f().then((x) => { assert.equal(x, 4) })"),
    (".js", "const want = 3;\n  expect(f()).toBe(want)", "const want = 4;\n  expect(f()).toBe(want)"),
    (".js", "expect(typeof f()).toBe('function')", "expect(typeof f()).toBe('object')"),
    (".go", 'if got := f(); got != 3 { t.Errorf("got %d, want 3", got) }',
     'if got := f(); got != 4 { t.Errorf("got %d, want 4", got) }'),
    (".go", 'if err != nil || f() != "v1" { t.Fatal(x) }', 'if err != nil || f() != "v2" { t.Fatal(x) }'),
    (".go", "if !reflect.DeepEqual(f(), []int{1, 2}) { t.Fail() }",
     "if !reflect.DeepEqual(f(), []int{2, 2}) { t.Fail() }"),
    (".go", "if !f() { t.Fatal(x) }", "if f() { t.Fatal(x) }"),
    (".go", "want := 3\n\tif f() != want { t.Fatal(want) }", "want := 4\n\tif f() != want { t.Fatal(want) }"),
    (".go", "if err != nil { t.Fatal(err); return }\n\tassert.Equal(t, 3, f())",
     "if err != nil { t.Fatal(err); return }\n\tassert.Equal(t, 4, f())"),
    (".go", "assert.Equal(t, http.StatusOK, f())", "assert.Equal(t, http.StatusAccepted, f())"),
    (".go", "assert.NoError(t, err)", "assert.Error(t, err)"),
    (".go", "assert.Truef(t, f(), x)", "assert.Falsef(t, f(), x)"),
    (".go", "assert.Len(t, f(), 2)", "assert.Len(t, f(), 3)"),
    (".go", "for _, c := range []struct{ in, want int }{{1, 2}, {in: 3, want: 4}} {\n"
     "\t\tif got := f(c.in); got != c.want { t.Errorf(x, got, c.want) }\n\t}",
     "for _, c := range []struct{ in, want int }{{1, 3}, {in: 3, want: 5}} {\n"
     "\t\tif got := f(c.in); got != c.want { t.Errorf(x, got, c.want) }\n\t}"),
    (".go", "for _, c := range []struct{ run func() int; want int }{{g, 1}} {\n"
     "\t\tc := c\n\t\tif got := c.run(); got != c.want { t.Error(x) }\n\t}",
     "for _, c := range []struct{ run func() int; want int }{{g, 2}} {\n"
     "\t\tc := c\n\t\tif got := c.run(); got != c.want { t.Error(x) }\n\t}"),
    (".go", "cases := map[string]struct{ want bool }{x: {want: true}}\n\tfor name, c := range cases {\n"
     "\t\tt.Run(name, func(t *testing.T) { assert.Equal(t, c.want, f()) })\n\t}",
     "cases := map[string]struct{ want bool }{x: {want: false}}\n\tfor name, c := range cases {\n"
     "\t\tt.Run(name, func(t *testing.T) { assert.Equal(t, c.want, f()) })\n\t}"),
    (".java", "assertEquals(3, f());", "assertEquals(4, f());"),
    (".java", 'assertEquals("v1", f(), "not v1");', 'assertEquals("v2", f(), "not v2");'),
    (".java", "assertEquals(0.5, f(), 0.01);", "assertEquals(0.6, f(), 0.01);"),
    (".java", "assertArrayEquals(new int[] {1, 2}, f());", "assertArrayEquals(new int[] {2, 2}, f());"),
    (".java", 'assertEquals(3, f(), "of " + x);', 'assertEquals(4, f(), "of " + x);'),
    (".java", 'assertEquals(3, f(), () -> "of " + x);', 'assertEquals(4, f(), () -> "of " + x);'),
    (".java", "assertTrue(f());", "assertFalse(f());"),
    (".java", "assertThat(f()).isNotNull().isEqualTo(3L);", "assertThat(f()).isNotNull().isEqualTo(4L);"),
    (".java", "assertThat(f()).contains(x);", "assertThat(f()).doesNotContain(x);"),
    (".java", "assertThat(f(), is(equalTo(7)));", "assertThat(f(), is(equalTo(8)));"),
    (".java", "assertThrows(IllegalArgumentException.class, () -> f());",
     "assertThrows(IllegalStateException.class, () -> f());"),
    (".java", "int want = 3;\n        assertEquals(want, f());",
     "int want = 4;\n        assertEquals(want, f());"),
    (".java", "try { f(); fail(); } catch (IOException e) { assertEquals(3, e.code()); }",
     "try { f(); fail(); } catch (IOException e) { assertEquals(4, e.code()); }"),
    (".rs", "assert_eq!(f(), 3);", "assert_eq!(f(), 4);"),
    (".rs", 'assert_eq!(f::<A, B>(), Some("v1"), "not {}", x);',
     'assert_eq!(f::<A, B>(), Some("v2"), "not {}", x);'),
    (".rs", "assert_eq!(f(), vec![(1, 'a')]);", "assert_eq!(f(), vec![(2, 'a')]);"),
    (".rs", 'assert_eq!(f(), "7".to_string());', 'assert_eq!(f(), "8".to_string());'),
    (".rs", "// We use assert_eq\n    assert_eq!(f(), 3);", "// We use assert_eq\n    assert_eq!(f(), 4);"),
    (".rs", "assert_ne!(f(), x)", "assert_eq!(f(), x)"),
    (".rs", "assert!(f().is_ok());", "assert!(f().is_err());"),
    (".rs", "assert!(!f());", "assert!(f());"),
    (".rs", "assert!(f() == 255);", "assert!(f() == 254);"),
    (".rs", "let want = [1];\n    assert_eq!(f(), &want);", "let want = [2];\n    assert_eq!(f(), &want);"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "before", "after"), QUIET)
def test_quiet_mutants_read_as_their_author_could_have_written_them(
    ending: str, before: str, after: str
) -> None:
    assert changed(before, ending)[0] == after


UNCERTAIN = [
    (".js", "if (x) { expect(f()).toBe(3) }"),
    (".js", "for (const a of b) expect(f(a)).toBe(3)"),
    (".js", "try { expect(f()).toBe(3) } catch (e) {}"),
    (".js", "setTimeout(() => { expect(f()).toBe(3) })"),
    (".js", "expect(f()).resolves.toBe(3)"),
    (".js", "if (x) return\n  expect(f()).toBe(3)"),
    (".js", "f().on('x', (y) => { expect(y).toBe(3); done() })"),
    (".js", "f().then((y) => { expect(y).toBe(3); done() }, done)"),
    (".js", "expect(f()).toBeCloseTo(3)"),
    (".js", "expect(f()).toHaveFoo(3)"),
    (".js", "request(app).get('/').expect(200)"),
    (".js", "request(app).get('/').expect(200, done)\n  request(app).get('/a').expect(200, done)"),
    (".js", "helper(f(), 3)"),
    (".go", "if x { assert.Equal(t, 3, f()) }"),
    (".go", "if f() != 3 { t.Log(x) }"),
    (".go", "if f() != 3 { return; t.Fatal(x) }"),
    (".go", "if x { return }\n\tassert.Equal(t, 3, f())"),
    (".go", "assert.Equal(mock, 3, f())"),
    (".go", "if f() != 3 && x { other.Fatal(x) }"),
    (".go", "assert.InDelta(t, 3, f(), 0.5)"),
    (".go", "for _, c := range cases { if f() != c.want { t.Error(x) } }"),
    (".go", "for _, c := range []struct{ want int }{{1}} { if x { break }; if f() != c.want { t.Fail() } }"),
    (".go", "for _, c := range []struct{ want int }{{1}} { if f(c.want) != c.want { t.Error(x) } }"),
    (".java", "if (x) assertEquals(3, f());"),
    (".java", "for (int a : b) { assertEquals(3, f(a)); }"),
    (".java", "if (x) return; assertEquals(3, f());"),
    (".java", "try { assertEquals(3, f()); } catch (AssertionError e) { }"),
    (".java", "try { f(); } catch (IOException e) { assertEquals(3, e.code()); }"),
    (".java", "try { f(); fail(); } catch (Throwable e) { assertEquals(3, e.code()); }"),
    (".java", "run(() -> assertEquals(3, f()));"),
    (".java", "assertEquals(3.0, f(), 2.0);"),
    (".java", "assertThat(f()).usingComparator(c).isEqualTo(3);"),
    (".java", "softly.assertThat(f()).isEqualTo(3);"),
    (".java", "assertThat(f()).isGreaterThan(3);"),
    (".java", "Numbers.assertEquals(3, f());"),
    (".go", "if x { t.Skip() }\n\tassert.Equal(t, 3, f())"),
    (".java", "assertEquals(45, f(), DELTA);"),
    (".java", "assertArrayEquals(new double[] {1, 2}, f(), delta);"),
    (".js", "[1].forEach(async (a) => { await g(a); expect(f(a)).toBe(3) })"),
    (".go", "for _, c := range []struct{ want int }{{1}} { check(c); if f() != c.want { t.Error(x) } }"),
    (".go", "for _, c := range []testCase{{want: 1}} { if c.run() != c.want { t.Error(x) } }"),
    (".js", "if (x) this.skip()\n  expect(f()).toBe(3)"),
    (".go", "t := new(testing.T)\n\tif f() != 3 { t.Errorf(x) }"),
    (".java", "assertThat(f()).isEqualTo(0.5, near);"),
    (".java", "assumeTrue(x); assertEquals(3, f());"),
    (".java", "all.assertAll(() -> assertEquals(3, f()));"),
    (".java", "try { f(); log.fail(); } catch (IOException e) { assertEquals(3, e.code()); }"),
    (".rs", "my::assert_eq!(f(), 3);"),
    (".rs", "if x { assert_eq!(f(), 3); }"),
    (".rs", "for a in b { assert_eq!(f(a), 3); }"),
    (".rs", "if x { return; } assert_eq!(f(), 3);"),
    (".rs", "run(|| assert_eq!(f(), 3));"),
    (".rs", "assert!(f() > 3);"),
    (".rs", "check!(f(), 3);"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "body"), UNCERTAIN)
def test_assertions_that_need_not_decide_have_no_quiet_mutant(ending: str, body: str) -> None:
    assert changed(body, ending) == []


@pytest.mark.parametrize(
    ("ending", "body"),
    [
        (".js", "const want = 3\n  f(want)\n  expect(f()).toBe(want)"),
        (".js", "expect(f()).toEqual({...x, a: 3})"),
        (".js", "expect(f()).toEqual({a: 3, a: 4})"),
        (".go", "want := 3\n\tg(want)\n\tif f() != want { t.Fatal(x) }"),
        (".java", "int want = 3; g(want); assertEquals(want, f());"),
        (".rs", "let want = 3; g(want); assert_eq!(f(), want);"),
        (".rs", "assert_eq!(f(), Point { x: 3 });"),
        (".rs", 'let want = "3"; g(&format!("{want}")); assert_eq!(f(), want);'),
        (".go", "if f() != -3 * g() { t.Fatal(x) }"),
        (".java", 'assertTrue(f().equals("3"));'),
        (".rs", 'use near::{Other, String}; assert_eq!(f(), String::from("3"));'),
        (".rs", 'assert_eq!(f(), "3".into());'),
        (".rs", 'assert_eq!(f(), "3".as_ref());'),
    ],
)
def test_values_that_are_used_elsewhere_or_hidden_by_others_stay(ending: str, body: str) -> None:
    assert not [text for text in changed(body, ending) if "4" in text.replace("a: 4", "")]


@pytest.mark.parametrize("ending", WRAPPED)
def test_a_false_assertion_can_be_added_to_every_test_after_what_it_tests(ending: str) -> None:
    body = "g()" if ending == ".go" else "g();"
    added = changed(body, ending, MutantKind.ADDED)
    assert added
    for text in added:
        assert text.startswith(f"{body}\n")


@pytest.mark.parametrize(
    ("body", "added"),
    [
        ("expect(f()).toBe(3)", "expect("),
        ("expect(f()).to.deep.equal([3])", "expect("),
        ("assert.equal(f(), 3)", "assert.equal("),
        ("done.is(f(), 3)", "done.is("),
        ("request(app).get('/').expect(200)", "if ("),
    ],
)
def test_a_false_assertion_that_is_added_to_a_test_has_the_style_of_its_own(body: str, added: str) -> None:
    lines = [text.rpartition("\n")[2].strip() for text in changed(body, ".js", MutantKind.ADDED)]
    assert lines
    for line in lines:
        assert line.startswith(added)
        assert (".to.equal(" in line) == (".to." in body)
        assert (").toBe(" in line) == ("toBe" in body)


@pytest.mark.parametrize(
    ("ending", "body", "first"),
    [
        (".js", "g()\n  return h()", "g()\n  "),
        (".js", "if (a) return\n  g()", ""),
        (".go", "if a { return }\n\tg()", ""),
        (".java", "g();\n        throw h();", "g();\n        "),
        (".rs", "g();\n    h()", "g();\n    "),
    ],
)
def test_a_false_assertion_is_added_before_a_test_may_end(ending: str, body: str, first: str) -> None:
    added = changed(body, ending, MutantKind.ADDED)
    assert added
    for text in added:
        assert text.startswith(first)
        assert text.endswith(body.removeprefix(first))


@pytest.mark.parametrize(
    ("ending", "source"),
    [
        (".js", "it.skip('a', () => { expect(f()).toBe(3) })"),
        (".js", "test.failing('a', () => { expect(f()).toBe(3) })"),
        (".js", "test('a', {todo: true}, () => { expect(f()).toBe(3) })"),
        (".js", "it('a', () => { expect(f()).toBe(3) })\nit('a', () => { expect(f()).toBe(3) })"),
        (".js", "if (lib.has) { it('a', () => { expect(f()).toBe(3) }) }"),
        (".js", "function helper() { expect(f()).toBe(3) }"),
        (".go", "package a\nfunc Testing(t *testing.T) { if f() != 3 { t.Fail() } }"),
        (".go", "package a\nfunc helper(t *testing.T) { if f() != 3 { t.Fail() } }"),
        (".java", "class A { @Test @Disabled void a() { assertEquals(3, f()); } }"),
        (".java", "class A { void helper() { assertEquals(3, f()); } }"),
        (".rs", "#[test]\n#[should_panic]\nfn a() { assert_eq!(f(), 3); }"),
        (".rs", "#[test]\n#[ignore]\nfn a() { assert_eq!(f(), 3); }"),
        (".rs", "fn helper() { assert_eq!(f(), 3); }"),
        (".rs", "#[test]\nfn a( { assert_eq!(f(), 3); }"),
        (".js", "\xff"),
    ],
)  # fmt: skip
def test_what_may_fail_or_never_runs_has_no_mutants(ending: str, source: str) -> None:
    assert list(mutants_of(source, ending)) == []


def test_a_title_that_tells_of_the_value_makes_its_mutant_loud() -> None:
    source = "it('returns 3', () => { expect(f()).toBe(3) })"
    kinds = [mutant.kind for mutant in mutants_of(source, ".js") if "toBe(4)" in mutant.after]
    assert kinds == [MutantKind.CHANGED]


@pytest.mark.parametrize(
    ("ending", "body"),
    [
        (".js", "expect(f('1.2.3')).toBe('1.2.3')"),
        (".go", 'if got := f("1.2.3"); got != "1.2.3" { t.Error(got) }'),
        (".java", 'assertEquals("1.2.3", f("x 1.2.3"));'),
        (".rs", 'assert_eq!(f("1.2.3"), "1.2.3");'),
    ],
)
def test_a_value_that_its_assertion_repeats_makes_its_mutant_loud(ending: str, body: str) -> None:
    assert not [text for text in changed(body, ending) if "1.2.4" in text]
    assert [text for text in changed(body, ending, MutantKind.CHANGED) if "1.2.4" in text]


def test_a_test_that_expects_an_exception_changes_only_that() -> None:
    source = (
        "class A { @Test(expected = NullPointerException.class) public void a() { assertEquals(3, f()); } }"
    )
    quiet = [mutant.after for mutant in mutants_of(source, ".java") if mutant.kind is MutantKind.VALUE]
    assert quiet == ["IllegalStateException.class"]


NAMES = [
    ("a/calc.test.ts", "Calc > adds two", ["adds two", "Calc adds two", "a/calc.test.ts | Calc > adds two"],
     ["adds two more", "Calc", "subtracts"]),
    ("a/calc.test.ts", "Calc > adds %i", ["Calc adds 12"], ["Calc adds"]),
    ("a/calc.test.ts", "Calc > adds two", ["calc.test.ts", "a/calc.test.ts"], ["b/calc.test.ts"]),
    ("a/calc_test.go", "TestAdd/two_of_them", ["TestAdd/two_of_them", "a:TestAdd/two_of_them", "TestAdd"],
     ["TestAddAll", "TestAdd/two_of"]),
    ("a/calc_test.go", "TestAdd/v1.2", ["TestAdd/v1.2"], ["TestAdd/v1.20", "TestAdd/v1"]),
    ("a/calc_test.go", "CalcSuite.TestAdd", ["TestCalcSuite/TestAdd"], ["TestCalcSuite/TestAddAll"]),
    ("a/calc_test.go", "TestAdd", ["TestAdd", "TestAdd/row"], ["TestAddAll", "MyTestAdd"]),
    ("a/CalcTest.java", "CalcTest.adds",
     ["org.a.CalcTest.adds", "CalcTest > adds() PASSED", "org.a.CalcTest"],
     ["org.a.CalcTest.addsAll", "org.a.OtherTest"]),
    ("tests/calc.rs", "sums::adds", ["sums::adds", "crate::sums::adds", "sums::adds::case_1"],
     ["sums::adds_all"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "function", "own", "others"), NAMES)
def test_names_in_logs_stand_for_functions(
    path: str, function: str, own: list[str], others: list[str]
) -> None:
    assert assign([(path, function)], [*own, *others]).get((path, function), []) == own


def test_a_name_stands_for_the_function_that_explains_most_of_it() -> None:
    functions = [("a.test.js", "Map > gets"), ("a.test.js", "Set > gets"), ("a.test.js", "Set > never gets")]
    found = assign(functions, ["Set gets", "Set never gets", "gets"])
    assert found == {functions[1]: ["Set gets"], functions[2]: ["Set never gets"]}


@pytest.mark.parametrize(
    ("ending", "source"),
    [
        (".js", "const assert = require('../assert')\nit('a', () => { assert.equal(f(), 3) })"),
        (".js", "import { expect } from './expect'\nit('a', () => { expect(f()).toBe(3) })"),
        (".go", 'package a\nimport "a/assert"\nfunc TestA(t *testing.T) { assert.Equal(t, 3, f()) }'),
        (".js", "function assert(x) { log(x) }\nit('a', () => { assert(f() === 3) })"),
        (".js", "const expect = (x) => near(x)\nit('a', () => { expect(f()).toBe(3) })"),
        (".js", "import { expect } from '@a/near'\nit('a', () => { expect(f()).toBe(3) })"),
        (".js", "const {assert} = require('near')\nit('a', () => { assert.equal(f(), 3) })"),
        (".js", "expect.addEqualityTesters([near])\nit('a', () => { expect(f()).toEqual([3]) })"),
        (".go", 'package a\nimport (\n\t"a/assert"\n\t"github.com/stretchr/testify/require"\n)\n'
         "func TestA(t *testing.T) { assert.Equal(t, 3, f()) }"),
        (".go", 'package a\nimport "github.com/stretchr/testify/suite"\ntype S struct { suite.Suite }\n'
         "func (s *S) Equal(a, b int) { near(a, b) }\nfunc (s *S) TestA() { s.Equal(3, f()) }"),
        (".java", "import static org.junit.Assert.*;\n"
         "class A extends Near { @Test void a() { assertEquals(3, f()); } }"),
        (".java", "import static org.junit.Assert.*;\nimport static a.Near.is;\n"
         "class A { @Test void a() { assertThat(f(), is(3)); } }"),
        (".java", "import static org.testng.Assert.*;\n"
         "class A { @Test void a() { assertEquals(f(), g()); } }"),
        (".java", "import static org.junit.Assert.assertEquals;\nimport io.vavr.collection.List;\n"
         "class A { @Test void a() { assertEquals(List.of(3), f()); } }"),
        (".rs", "use near::assert_eq;\n#[test]\nfn a() { assert_eq!(f(), 3); }"),
        (".rs", "macro_rules! assert_eq { ($a:expr) => {} }\n#[test]\nfn a() { assert_eq!(f(), 3); }"),
        (".java", "import static a.Near.assertEquals;\nclass A { @Test void a() { assertEquals(3, f()); } }"),
        (".java", "import static org.junit.Assert.*;\nclass A { @Test void a() { assertEquals(3, f()); }\n"
         "void assertEquals(long a, long b) { } }"),
    ],
)  # fmt: skip
def test_assertions_of_the_project_itself_are_left_alone(ending: str, source: str) -> None:
    assert [mutant.kind for mutant in mutants_of(source, ending) if mutant.kind is not MutantKind.ADDED] == []
