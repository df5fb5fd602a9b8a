"""Writes tests/golden/jinja.json: small templates, and what Transformers' Jinja environment makes of them, a text or
(null) a refusal.

    python3 tests/golden/make_jinja_golden.py

It needs Transformers and Jinja2; the output names their versions. The clock stands at 2026-03-01 10:20:30.
"""

import datetime
import json
import pathlib

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 3, 1, 10, 20, 30)


chat_template_utils.datetime = FixedDatetime

VARIABLES = {
    "name": "W\u00f6rld", "n": 7, "x": 2.5, "yes": True, "nothing": None, "text": "  One two,\nthree  ",
    "list": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"c": [1, None, "\u00e9\u0007'\""]}, "B": 0.1},
    "people": [{"name": "Ann", "age": 30, "at": {"city": "Rome"}}, {"name": "bob", "age": 25, "at": {"city": "Oslo"}},
               {"name": "Cy", "age": 30}],
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
}

# White space.
TEMPLATES = ["a\n{% if yes %}\n  b\n{% endif %}\nc\n", "a  {%- if yes -%}  b  {%- endif -%}  c", "  {% if yes %} b{% endif %}\n",
             "  {%+ if yes +%}\n b{% endif %}\n", "{# c #}\na {#- c -#} b", " {{- name -}} !", "a\n\n", "a\r\nb\rc",
             "{% raw %}\n {{ x }} {%- endraw %} y", " {%- raw -%} {% x %} {%- endraw -%} y", "x\n  {# c #}  \ny",
             "{% set a = 1 %}\n\n{{ a }}\n", "{{ '}}' }}{{ {'a': {}}['a'] }}", "{% for i in list %}\n  {{ i }}\n{% endfor %}\n.",
             "{{ 'a' }}\n{{ 'b' }}\n", "{%- if yes %}\n\n  x{% endif %}", "{{+ n }}"]
# Values as text.
TEMPLATES += ["{{ %s }}" % e for e in (
    "none", "true", "n", "x", "-0.0", "1e16", "1e15", "1.0e-5", "0.0001", "123456789.123", "1e400", "-1e400", "[1, 'a', none]", "(1,)", "()",
    "{'a': 1, 2: 'b'}", "d", "['it\\'s', \"q\\\"\", 'a\\n\\t\\\\']", "'\\x41\\u00e9\\101\\q'", "'a' 'b'", "range(3)",
    "range(1, 10, 4)", "1_000 + 0x1F + 0b11 + 0o17", "1.5e3", "d.keys()", "d.items() | list", "d.values()", "undefined_name",
    "[undefined_name]", "'\u200b\u00a0' | list", "1 if no", "namespace(a=1)")]
# Operators.
TEMPLATES += ["{{ %s }}" % e for e in (
    "1 + 2 * 3 - 4 / 2", "7 // 2, -7 // 2, 7 % 3, -7 % 3, 7.5 // 2, -7.5 % 2", "2 ** 10, 2 ** -1, -2 ** 2, 2 ** 3 ** 2", "1 / 0", "1 % 0",
    "'a' + 'b' ~ 1 ~ none ~ 2.0", "'a' + 1", "[1] + [2]", "(1,) + (2,)", "[1] + (2,)", "'ab' * 3", "[0] * 2", "2 * 'a'", "'a' * -1",
    "1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, '1' == 1", "'a' < 'b', [1, 2] < [1, 3]", "1 < 'a'", "not 1, not '', not [], not {}",
    "1 and 0 or 'x'", "'' or none", "1 in [1, 2], 3 not in (1,), 'b' in 'abc', 'a' in d, 'z' not in d", "1 in 'a'", "none in [none]",
    "true + 1", "true == 1, 1 is true", "+n, -n, +true", "-'a'", "n if n > 5 else 0", "1 if 0 else 2 if 0 else 3",
    "list[0], list[-1], list[5]", "name[1], name[-1], name[9]", "list[1:], list[:-1], list[::-1], list[::2], name[1:3], name[::-1]",
    "list['a']", "list[1:2:0]", "d['a']['c'][2]", "d.a.c.0", "d.missing", "d.missing.more", "missing.more", "none.x", "n.x",
    "d['items'] is defined, d.items is defined", "(1, 2)[0]", "[1, 2,]", "{'a': 1,}", "'a' is string and 1 is number", "1 is not string",
    "n is divisibleby 7, n is odd, n is even", "list is iterable, list is sequence, d is mapping, d is sequence, 'a' is sequence",
    "nothing is none, missing is defined, missing is undefined, yes is boolean, x is float, n is integer, yes is integer",
    "'a' is in 'abc', 1 is eq 1, 1 is ne 2, 1 is lt 2, 2 is ge 2, 3 is gt(2)", "'abc' is in 'abcd'",
    "none is sameas none", "1 is nope", "1 | nope", "(missing or 'x') | upper",
    "d.update({})", "list.append(1)", "''.__class__", "''.__class__.__mro__", "d.pop('a')", "list.index(1), list.count(3)")]
# Methods.
TEMPLATES += ["{{ %s }}" % e for e in (
    "text.strip(), text.lstrip() | tojson, text.rstrip() | tojson, 'xxaxx'.strip('x')", "text.split(), text.split(' '), 'a,b,c'.split(',', 1)",
    "'a b  c '.rsplit(none, 1), 'a,b,c'.rsplit(',', 1)", "'a\\nb\\r\\nc\\n'.splitlines(), 'a\\nb'.splitlines(true)", "''.split(), ''.split(',')",
    "name.upper(), name.lower(), 'hELLO wORLD'.capitalize(), \"they're bill's\".title(), 'stra\u00dfe'.upper()",
    "'aXbXc'.replace('X', '-'), 'aaa'.replace('a', 'b', 2), 'ab'.replace('', '-')", "'abc'.startswith('a'), 'abc'.endswith(('x', 'c'))",
    "'abcabc'.find('c'), 'abcabc'.rfind('c'), 'abc'.find('z'), 'abcabc'.count('bc'), '\u00e9\u00e9x'.find('x')", 
    "'-'.join(['a', 'b']), ','.join('abc')", "'-'.join([1])",
    "'123'.isdigit(), 'a1'.isdigit(), ''.isdigit()",
    "'a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'abc'.partition('x')", "'prefix-x'.removeprefix('prefix-'), 'x.y'.removesuffix('.y')",
    "'{} {1}'.format(1)", "'{} {}'.format('a', 2), '{1}{0}{{}}'.format(1, 2), '{a} {c}'.format(a={'b': 1}, c=none)",
    "d.get('a').get('c'), d.get('z'), d.get('z', 5), d.items() | list | length, d.keys() | list", "'a'.nope()", "'a'.upper(1)")]
# Letters and numbers of the world.
TEMPLATES += ["{{ %s }}" % e for e in (
    "'\u0130I\u0131'.lower() | list, '\u03a3\u0391\u03a3 \u03a3. A\u03a3\u2019 \u0391\u03a3b'.lower(), '\ufb01\u00df\u0149'.upper()",
    "'\u01c6x \ufb01n \u00dfa \u1f88\u03a3 o\u2019neil'.title(), '\ufb01N \u039f\u03a3'.capitalize()",
    "'\u00b2'.isdigit(), '\u00bd'.isdigit(), '\u0663'.isdigit()",
    "'\u03a3\u0391\u03a3 \u03a3\u03b1'| title, '\ufb01x' | capitalize, '\u0391\u03a3' | lower, '\u00df' | upper")]
# What Python has besides.
TEMPLATES += ["{{ %s }}" % e for e in (
    "range(10)[2:5], range(10)[::-1], range(0, 20, 3)[1::2], range(3)[5:], range(5)[1:4][1:] | list",
    "'a'.translate({97: 'b'}) if false else 1")]
TEMPLATES += [
    "{% set loop = 1 %}{{ loop }}", "{% for i in list %}{% set loop = 1 %}{% endfor %}", "{% for loop in list %}{% endfor %}", "{% for i in list %}{% else %}{% set a, loop = 1, 2 %}{% endfor %}",
    "{% for i in list %}{% macro f() %}{% set loop %}{% endset %}{% endmacro %}{% endfor %}", "{% for i in list %}{% with loop = 2 %}{{ loop }}{% endwith %}{% endfor %}", "{% macro f(loop) %}{{ loop }}{% endmacro %}{% for i in list %}{{ f(i) }}{% endfor %}"]
# Filters.
TEMPLATES += ["{{ %s }}" % e for e in (
    "text | trim, 'xax' | trim('x'), name | upper, name | lower, 'foo bar-baz (qux)' | title, 'aBC' | capitalize", "name | length, list | count, d | length, n | length",
    "list | first, list | last, [] | first, 'abc' | first, 'abc' | last", "list | sort, list | sort(reverse=true), words | sort, words | sort(case_sensitive=true)",
    "people | sort(attribute='age,name') | map(attribute='name') | join(', ')", "people | map(attribute='at.city', default='-') | list", "[1, 'a'] | sort",
    "words | join, words | join('-'), list | join(', '), people | join(',', attribute='name'), [none, 1.5] | join('|')", "list | sum, people | sum(attribute='age'), [] | sum",
    "people | selectattr('age', 'gt', 26) | map(attribute='name') | list, people | rejectattr('at') | list | length", "list | select('odd') | list, list | reject('eq', 1) | list, [0, 1, ''] | select | list",
    "words | map('upper') | list, list | map('string') | join", "d | dictsort, d | dictsort(by='value') | string",
    "{'b': 2, 'a': 1, 'C': 3} | dictsort, {'b': 2, 'a': 1} | dictsort(reverse=true), {'b': 1, 'C': 0} | dictsort(true), {'b': 2, 'a': 3} | dictsort(by='value')", "words | unique | list, ['a', 'A'] | unique(case_sensitive=true) | list",
    "list | min, list | max, words | min, people | max(attribute='age')", "list | reverse | list, 'abc' | reverse", "'abc' | list, d | list, (1, 2) | list",
    "missing | default('x'), '' | default('x'), '' | default('x', true), none | d('y', boolean=true)", "'12' | int, '3.7' | int, 'x' | int, 'x' | int(5), 3.9 | int, '0x1f' | int(base=16), ' 42 ' | int, true | int",
    "'1.5' | float, 'x' | float, 3 | float, 'inf' | float", "-5 | abs, -2.5 | abs", "(-5) | abs, 2.567 | round, 2.567 | round(2), 2.5 | round, 3.5 | round, 2.1 | round(method='ceil'), 2.9 | round(0, 'floor'), 1234 | round(-2)",
    "text | replace('o', '0'), 'aaa' | replace('a', 'b', 2), 5 | replace('5', '6')", "'a\\nb\\n\\nc' | indent, 'a\\nb' | indent(2, true), 'a\\n\\nb' | indent(2, blank=true), 'a\\nb' | indent('> ')",
    "'<a>&\"' | e, '<' | safe, '<' | safe + '<', 'a<' | e + 'b<' | safe",
    "[1, 2] | string + 'x', n | string | length", "d | items | list | length", "d | tojson, 'a\"\\n\u00e9</' | tojson, none | tojson, 1.0 | tojson, [1, [2]] | tojson, {} | tojson, [] | tojson",
    "d | tojson(indent=2), [[], {}] | tojson(indent=1), d | tojson(ensure_ascii=true), d | tojson(separators=(',', ':')), {'b': 1, 'a': 2} | tojson(sort_keys=true), {1: 2, none: 3, true: 4} | tojson",
    "missing | tojson", "missing | upper, missing | length, missing | list, missing | join", "missing | int", "list | map('nope') | list", "3 | join", "range(3) | list, range(100001) | length")]
# Statements.
TEMPLATES += [
    "{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for i in missing %}x{% else %}none{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in 5 %}{% endfor %}",
    "{% for i in list if i > 1 %}{{ i }}/{{ loop.length }} {% endfor %}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'a\u00e9' %}<{{ c }}>{% endfor %}", "{% for i in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% break %}", "{% for i in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}",
    "{% set a = 1 %}{% for i in list %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}", "{% set ns = namespace(a=1) %}{% for i in list %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}{{ ns.c }}",
    "{% set d.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a %}x {{ n }}{% endset %}[{{ a }}]", "{% set a | upper | trim %} x {% endset %}[{{ a }}]", "{% if yes %}{% set q = 1 %}{% endif %}{{ q }}",
    "{% if nothing %}a{% elif n > 5 %}b{% else %}c{% endif %}", "{% macro f(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}{{ f(b=3, a=4) }}{{ f() }}{{ f(1, 2) | upper }}", "{% macro f() %}{% endmacro %}{{ f(1) }}", "{% macro f() %}{% endmacro %}{{ f(a=1) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, b=4) }}", "{% macro f(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) f(5) %}{{ y }}{{ n }}{% endcall %}", "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ later }}{% endmacro %}{% set later = 1 %}{{ f() }}{{ f.name }}{{ f.arguments }}", "{% filter upper %}a{{ name }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}a{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with %}{% set z = 1 %}{% endwith %}{{ z }}",
    "{% block x %}{{ n }}{% endblock %}", "{% print n, 'a' %}", "{% generation %}a{{ n }}{% endgeneration %}", "{{ dict(a=1, **{'b': 2}) }}{{ dict({'a': 1}, b=2) }}{{ dict([('a', 1)]) }}",
    "{{ raise_exception('no!') }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S %a %A %b %B %j %y %I %p %%') }}", "{% set f = name.upper %}{{ f() }}", "{{ [1, 2, 3] | map('string') | join }}{% for m in messages %}<{{ m['role'] }}>{{ m.content }}{% endfor %}", "{% for m in messages %}{% if loop.last and m.role == 'assistant' %}{{ m | tojson }}{% endif %}{% endfor %}",
    "{% if %}", "{{ }}", "{{ 1 + }}", "{% endif %}", "{% for i in list %}", "{{ 'a }}", "{% nope %}", "{{ (1 }}", "{{ a b }}", "{# x", "{% raw %}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{{ f(a=1, 2) }}", "{{ n is string is number }}", "{{ 01 }}", "{{ $ }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% include 'x' %}",
    "{% set x = namespace(v=[]) %}{% for i in list %}{% set x.v = x.v + [i] %}{% endfor %}{{ x.v }}", "{{ messages[-1:][0].content }}{{ messages | length - 1 }}{{ messages[0]['content'][0:1] }}",
]


def render(template):
    try:
        program = chat_template_utils._compile_jinja_template(template)
        return program.render(**VARIABLES)
    except Exception:  # whatever Jinja and Python refuse
        return None


def main():
    golden = {
        "made_by": "tests/golden/make_jinja_golden.py",
        "versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
        "variables": VARIABLES,
        "templates": [[template, render(template)] for template in TEMPLATES],
    }
    (HERE / "jinja.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
