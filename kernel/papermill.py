"""Teaches papermill to write the parameters of a notebook in Go.

Papermill keeps its translators in a table without a plug-in point. It loads engines from entry points when it is imported, before it
translates anything: this module is such an engine, the default one unchanged, and fills in the table as it is loaded.
"""

import json
import math
import re

from papermill.engines import NBClientEngine
from papermill.exceptions import PapermillException
from papermill.models import Parameter
from papermill.translators import Translator, papermill_translators


class GoTranslator(Translator):
    @classmethod
    def translate_none(cls, val):
        raise PapermillException("a parameter of a Go notebook cannot be null: nil has no type; leave the parameter out")

    @classmethod
    def translate_bool(cls, val):
        return "true" if val else "false"

    @classmethod
    def translate_float(cls, val):
        if not math.isfinite(val):
            raise PapermillException(f"a parameter of a Go notebook cannot be {val}: Go has no such constant")
        return repr(float(val))  # with a point or an exponent: := makes it a float64

    @classmethod
    def translate_escaped_str(cls, val):
        # JSON's strings are Go's, but for the escaping of a lone surrogate, which no text has.
        return json.dumps(str(val), ensure_ascii=False)

    @classmethod
    def _element_type(cls, vals):
        for go, kind in (("bool", bool), ("int", int), ("float64", float), ("string", str)):
            if vals and all(type(v) is kind for v in vals):
                return go
        return "float64" if vals and all(type(v) in (int, float) for v in vals) else "any"

    @classmethod
    def translate_list(cls, val):
        return f"[]{cls._element_type(val)}{{{', '.join(cls.translate(v) for v in val)}}}"

    @classmethod
    def translate_dict(cls, val):
        items = ", ".join(f"{cls.translate_str(k)}: {cls.translate(v)}" for k, v in val.items())
        return f"map[string]{cls._element_type(list(val.values()))}{{{items}}}"

    @classmethod
    def comment(cls, cmt_str):
        return f"// {cmt_str}".strip()

    @classmethod
    def assign(cls, name, str_val):
        return f"{name} := {str_val}"

    # name := value, or var name type = value, on a line of its own; a comment behind it is the parameter's help.
    DECLARATION = re.compile(r"""^(?:var\s+(?P<var>\w+)(?:\s+(?P<type>[^=]+?))?\s*=|(?P<name>\w+)\s*:=)\s*(?P<value>(?:"(?:\\.|[^"\\])*"|`[^`]*`|[^/"`])+?)\s*(?://\s*(?P<help>.*))?$""")

    @classmethod
    def inspect(cls, parameters_cell):
        found = []
        for line in parameters_cell["source"].splitlines():
            m = cls.DECLARATION.match(line.strip())
            if m:
                found.append(Parameter(name=m["var"] or m["name"], inferred_type_name=m["type"] or "None", default=m["value"], help=m["help"] or ""))
        return found


papermill_translators.register("go", GoTranslator)


class Engine(NBClientEngine):
    """The default engine, under a name that an entry point can have."""
