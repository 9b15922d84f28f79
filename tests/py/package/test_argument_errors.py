"""Every public call must report wrong arguments with its name, the argument's name, the value that it
got and the value that it expected.

The walk replaces one argument of a valid call at a time (argument_recipes.py). Each exception from
the rule is in ALLOWED, with the reason.
"""

import contextlib
import inspect
import re
import signal
import warnings
from collections import Counter

import argument_recipes as recipes
import dldist
import pytest

LIMIT_S = 10.0
UNKNOWN, MISSING = "unknown keyword", "missing"
DISAGREEMENTS = ("dtype", "shape", "length", "sum", "read-only")
"""Mistakes for which the text may name another argument, which does not fit this one."""


class Hanging(BaseException):
    pass


def _hang(*_):
    raise Hanging


def made(value):
    is_factory = inspect.isfunction(value) and (value.__name__ == "<lambda>" or value.__module__ == recipes.__name__)
    return value() if is_factory else value


def kind_of(call, parameter):
    kind = recipes.SPECIAL.get((call, parameter)) or recipes.BY_NAME.get(parameter)
    assert kind is not None, f"{call}: argument {parameter!r} has no recipe: add it to BY_NAME or SPECIAL"
    return recipes.KINDS[kind] if isinstance(kind, str) else kind


class Walk:
    def __init__(self):
        self.calls = recipes.public_calls()
        self.world = None
        self.tries = 0
        self.faults = []
        self.used = set()

    def ready(self, is_inside):
        if (self.world is not None) != is_inside or dldist.is_initialized() != is_inside:
            self.spoil()
        if self.world is None and is_inside:
            self.world = recipes.OneRank()

    def spoil(self):
        """Leave the world, which an accepted mistake may have changed."""
        with contextlib.suppress(Exception):
            dldist.destroy_process_group()
        self.world = None

    def function(self, call):
        owner, _, name = call.rpartition(".")
        if inspect.isclass(self.calls.get(owner)):
            return getattr(self.world.instance(owner, call), name)
        return self.calls[call]

    def arguments(self, call, parameters, wrong_name, label, wrong):
        """Return valid arguments except for one. `wrong_name` is None for an unknown or a missing argument."""
        required = [p.name for p in parameters if p.default is p.empty]
        values = {p: made(kind_of(call, p)[0]) for p in required if p != wrong_name}
        known = [p.name for p in parameters]
        for name, value in recipes.ALSO.get(call, {}).items():
            if name in known and name != wrong_name and recipes.INSTEAD.get(wrong_name) != name:
                values[name] = made(value)
        if label == UNKNOWN:
            values["no_such_argument"] = 1
        elif label == MISSING:
            del values[required[-1]]
        else:
            values[wrong_name] = made(wrong)
        positional = [values.pop(p.name) for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in values]
        return positional, values

    def walk(self, call):
        parameters = recipes.parameters_of(self.calls[call])
        mistakes = [(p.name, label, wrong) for p in parameters for label, wrong in kind_of(call, p.name)[1].items()]
        has_keywords = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.calls[call]).parameters.values())
        if not has_keywords:
            mistakes.append((None, UNKNOWN, None))
        if any(p.default is p.empty for p in parameters):
            mistakes.append((None, MISSING, None))
        for name, label, wrong in mistakes:
            self.ready(call not in recipes.WITHOUT_WORLD)
            positional, named = self.arguments(call, parameters, name, label, wrong)
            function = self.function(call)
            self.tries += 1
            self.judge(call, parameters, name, label, wrong, self.outcome(function, positional, named))

    def outcome(self, function, positional, named):
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        try:
            result = function(*positional, **named)
        except Hanging:
            return "hangs"
        except BaseException as error:
            return error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return f"accepts it: {type(result).__name__}"

    def judge(self, call, parameters, name, label, wrong, outcome):
        where = f"{call}({name or label})[{label}]" if name else f"{call}[{label}]"
        problems, text = self.problems(call, parameters, name, label, made(wrong), outcome)
        if not isinstance(outcome, ValueError | TypeError):
            self.spoil()
        for problem in problems:
            allowed = [row for row in recipes.ALLOWED if row.problem == problem and row.matches(where, text)]
            self.used.update(allowed)
            if not allowed:
                self.faults.append((where, problem, text))

    def problems(self, call, parameters, name, label, wrong, outcome):
        if isinstance(outcome, str):
            return ["accepts" if outcome.startswith("accepts") else outcome], outcome
        text = str(outcome)
        problems = []
        if not isinstance(outcome, ValueError | TypeError):
            return ["class"], f"{type(outcome).__name__}: {text}"
        if not name and re.match(r"[\w.]+\(\) (got an unexpected|missing|takes)|Can't instantiate abstract|cannot create '", text):
            return [], text  # CPython's text
        owner, _, function = call.rpartition(".")
        owner = owner.rpartition(".")[2]
        starts = [f"{function}()", f"{owner}.{function}()", f"plan.{function}()", f"{owner}()", f"{function}.__init__()"]
        if not str(outcome).startswith(tuple(starts)):
            problems.append("call")
        required = [p.name for p in parameters if p.default is p.empty]
        names = [name] if name else ["no_such_argument"] if label == UNKNOWN else [required[-1]]
        if label in DISAGREEMENTS:
            names = [p.name for p in parameters]
        if not any(re.search(rf"\b{each}", text) for each in names):
            problems.append("argument")
        if name and not shows_both(text, wrong, isinstance(outcome, TypeError)):
            problems.append("form")
        return problems, text


def shows_both(text, wrong, is_type_error):
    """Return True if the text has the value that the call got and the value that it expected."""
    if is_type_error and re.search(r"must be .*, not ", text):  # CPython's form
        return True
    return "expected" in text.lower() and ("got " in text or repr(wrong) in text)


@pytest.mark.deadline(240)
def test_every_mistake_in_arguments_is_reported_with_call_and_argument(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]  # of the deadline of this test
    before = signal.signal(signal.SIGALRM, _hang)
    walk = Walk()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for call in walk.calls:
                if call not in recipes.NOT_WALKED:
                    walk.walk(call)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left_s)
        walk.spoil()
    counts = Counter(problem for _, problem, _ in walk.faults)
    print(f"{len(walk.calls)} calls, {walk.tries} mistakes, {dict(counts)}")
    assert [f"{where}: {problem}: {text}" for where, problem, text in walk.faults] == []
    assert [row for row in recipes.ALLOWED if row not in walk.used] == [], "no longer needed"
    assert [name for name in recipes.NOT_WALKED if name not in walk.calls] == [], "no longer public"
