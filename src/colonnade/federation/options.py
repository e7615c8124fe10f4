"""What a method takes, declared once: a typed field with its help, its bounds and its flag.

    bins: Annotated[int, Option("Cells of a continuous or long count column.", least=1, most=10_000)] = 20

From these declarations follow the check of every value, `get_params` and `set_params` as in scikit-learn, the options
as data, the [options] of a job.toml, the flags of the verb, the API page, and which columns a party's policy sees.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, Literal, Self

from colonnade.codec import ListOf, bare, convert, hints_of, nearest, plain
from colonnade.errors import BadArguments, UnknownColumn
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.privacy.cost import Relation

LARGEST = 2**62
"""Of a whole number that declares no bounds, a seed say: it fits into 64 bits."""


@dataclass(frozen=True)
class Option:
    """One option of a method.

    `flag` and `short` name it on the command line (`--min-joint`; by default the field's name), `form` is what a
    value looks like there (`PARTY=NORM`). `least` and `most` include their end, `above` and `below` do not. `reads`:
    the value names columns that the job reads; where it is None, the job reads none ("named") or all ("named or all");
    there "!name" is all but that one.
    `only` maps another option to the values with which this one has a meaning; with any other value it must stay at its
    default.
    """

    help: str
    flag: str = ""
    short: str = ""
    form: str = ""
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    reads: Literal["", "named", "named or all"] = ""
    only: Mapping[str, tuple[Any, ...]] | None = None
    valid: Callable[[float], object] | None = None
    """Refuses a number in words of its own; an option that is annotated again keeps it."""

    def check(self, name: str, value: Any) -> None:
        """Refuse a number out of bounds, in a list or a table too; `name` names it in the message."""
        if isinstance(value, Mapping):
            value = list(value.values())
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if self.valid is not None:
                self.valid(number)
            if isinstance(number, int) and not -LARGEST <= number <= LARGEST:
                raise BadArguments(f"{name} must be a number of at most {LARGEST:,} in size, not {number!r}.")
            if not (self.least <= number <= self.most and self.above < number < self.below):
                raise BadArguments(f"{name} must be {self.range or 'finite'}, not {number!r}.")

    @property
    def range(self) -> str:
        """The bounds in words; empty if there are none."""
        stated = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{words} {bound:,.12g}" for words, bound in stated.items() if math.isfinite(bound))


@dataclass(frozen=True)
class Declared:
    """A field of a method with its type, its option and its default (`MISSING` if it must be given)."""

    name: str
    hint: Any
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        return self.option.flag or f"--{self.name.replace('_', '-')}"


def option_of(hint: Any) -> Option:
    """The `Option` in an annotated type; the last one wins, so that a shared alias can be annotated again."""
    extras = typing.get_args(hint)[1:] if hint is not bare(hint) else ()
    options = [extra for extra in extras if isinstance(extra, Option)]
    valid = next((option.valid for option in reversed(options) if option.valid is not None), None)
    return replace(options[-1], valid=valid) if options else Option("")


@functools.cache
def _declared(cls: type[Any]) -> dict[str, Declared]:
    hints = hints_of(cls)  # type: ignore[arg-type]
    declared: dict[str, Declared] = {}
    for field in fields(cls):
        if field.init:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            hint = hints[field.name]
            declared[field.name] = Declared(field.name, bare(hint), option_of(hint), default)
    return declared


class Options:
    """The base of every method: a dataclass whose fields are its options."""

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """The options by name, in the order of the class."""
        return _declared(cls)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for name, declared in self.declared().items():
            stated = getattr(self, name)
            value = convert(stated, declared.hint, name)
            if value is not stated:
                object.__setattr__(self, name, value)
            declared.option.check(name, value)
        for name, declared in self.declared().items():
            if declared.option.only and getattr(self, name) != declared.default:
                self._belongs(name, declared.option.only)
        checked = self.get_params()
        self.check()
        for name, value in checked.items():  # scikit-learn's `clone` wants every object back that it gave
            if getattr(self, name) is not value and getattr(self, name) == value:
                object.__setattr__(self, name, value)

    def _belongs(self, name: str, only: Mapping[str, tuple[Any, ...]]) -> None:
        for other, values in only.items():
            if getattr(self, other) not in values:
                allowed = " or ".join(f"{other}={value!r}" for value in values)
                raise BadArguments(
                    f"{name} has no meaning with {other}={getattr(self, other)!r}; it belongs to {allowed}: leave it"
                    " out."
                )

    def check(self) -> None:
        """What the options must satisfy together, beyond what each declares; it may normalise a value."""

    # --- as scikit-learn has them ---------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """{option: value}. `deep` is scikit-learn's, and changes nothing here.

        Parameters
        ----------
        deep : scikit-learn's; changes nothing here.

        Returns
        -------
        {option: value}.
        """
        return {name: getattr(self, name) for name in self.declared()}

    def set_params(self, **params: Any) -> Self:
        """Change options in place, all or none; the new ones are checked together.

        Parameters
        ----------
        params : options by name.

        Returns
        -------
        The method itself.
        """
        checked = type(self)(**{**self.get_params(), **self._known(params)})
        for name in self.declared():
            object.__setattr__(self, name, getattr(checked, name))
        return self

    @classmethod
    def _known(cls, params: Mapping[str, Any]) -> Mapping[str, Any]:
        known = cls.declared()
        for name in params:
            if name not in known:
                raise BadArguments(
                    f"{cls.__name__} has no option {name!r}; it has {', '.join(sorted(known))}."
                    f"{nearest(str(name), known)}"
                )
        return params

    # --- as data ------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        """Every option as plain data; `from_options` is its inverse."""
        return {name: plain(getattr(self, name)) for name in self.declared()}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """From data, with defaults for what is not stated; what is unknown or lacking is refused by name.

        Parameters
        ----------
        options : {option: plain value}, as in a job.toml.

        Returns
        -------
        The method.
        """
        if not isinstance(options, Mapping):
            raise BadArguments(f"the options of {cls.__name__} are a table, not {options!r}.")
        return cls(**cls.stated(options))

    @classmethod
    def stated(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """These options, if all of them are known and none is lacking."""
        cls._known(options)
        for name, declared in cls.declared().items():
            if declared.default is MISSING and name not in options:
                raise BadArguments(f"{cls.__name__} needs the option {name!r}; add it.")
        return options

    def reads(self) -> tuple[str, ...] | None:
        """The columns that the options say the job reads; None: it leaves the choice open, and may read all."""
        named: list[str] = []
        for name, declared in self.declared().items():
            if declared.option.reads:
                value = getattr(self, name)
                if declared.option.reads == "named or all" and (value is None or without(value)):
                    return None
                named += [] if value is None else _names(value)
        return tuple(dict.fromkeys(named))

    def left_out(self) -> tuple[str, ...]:
        """The columns that an option leaves out as "!name"."""
        lists = (getattr(self, name) for name, own in self.declared().items() if own.option.reads == "named or all")
        return tuple(name for names in lists for name in without(names))

    def choosing(self, columns: Sequence[str]) -> Self:
        """These options where all columns are known: what leaves columns out names the others, but those that another
        option names."""
        out = self.left_out()
        for name in out:
            if name not in columns:
                raise UnknownColumn(f"no party has a column {name!r} to leave out.{nearest(name, columns)}")
        if not out:
            return self
        params, own = self.get_params(), self.declared()
        aside = {
            name for key, value in params.items() if own[key].option.reads == "named" for name in _names(value or ())
        }
        kept = tuple(name for name in columns if name not in aside and name not in out)
        changed = {key: kept for key, value in params.items() if own[key].option.reads == "named or all" and value}
        return type(self)(**params | changed)


def without(names: Any) -> tuple[str, ...]:
    """The columns that a list leaves out, as "!name"; none if it names those to use."""
    out = tuple(name[1:] for name in names or () if name.startswith("!"))
    if out and len(out) < len(names):
        raise BadArguments("columns= names the columns to use, or each with a ! those to leave out, not both.")
    return out


def _names(value: Any) -> list[str]:
    """The column names in an option's value: a name, a list of names, or lists of lists."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [str(name) for name in value]
    return [name for item in value for name in _names(item)]


# --- options that mean the same in every method -------------------------------------------------------------------

View = Literal["client", "server"]
Presence = Literal["known", "secret", "ignore"]

Epsilon = Annotated[
    float, Option("Total privacy loss (epsilon) per record, over all parties' releases.", valid=check_epsilon)
]
OptionalEpsilon = Annotated[
    float | None,
    Option(
        "Total privacy loss (epsilon) per record, over all parties' releases. Without it sums are exact, and every"
        " party must allow that by name.",
        valid=check_epsilon,
    ),
]
Delta = Annotated[
    float, Option("The delta that goes with epsilon; well below one over the number of records.", valid=check_delta)
]
ColumnNames = Annotated[
    ListOf[str] | None,
    Option('Which columns; all by default. "!name" leaves one out.', reads="named or all"),
]
Response = Annotated[str, Option("The column to explain.", short="-r", reads="named")]
Gamma = Annotated[int, Option("The scale of quantisation: columns become integers of 1/gamma of their range.")]
ViewOption = Annotated[
    View, Option("Noise against the parties too ('client'), or against the coordinator only ('server').")
]
RelationOption = Annotated[Relation, Option("The neighbouring relation that the noise is calibrated for.")]
Memory = Annotated[
    float | None,
    Option("MB that the coordinator or a party may use; less memory takes more rounds.", above=0),
]
Verification = bool | Literal["full"]
Verify = Annotated[
    Verification,
    Option(
        "Let the share holders check each other and the parties' rows before anything is opened; 'full' proves all that"
        " can be proven, whatever it costs, and the plan says how much."
    ),
]
Tile = Annotated[int, Option("The width of the tiles in which a matrix is computed.", least=1)]
Rows = Annotated[int | None, Option("Rows to write; as many as the cohort by default. They cost nothing.", least=1)]
FileFormat = Annotated[Literal["parquet", "csv"], Option("Of the file that is written.", flag="--format")]
