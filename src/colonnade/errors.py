"""Every error that Colonnade raises, in one small family.

An error is part of the interface: one sentence that names the cause and the cure. Each class also has a
`code`. When an error happens at a party, **only the code crosses the border**, and what the error itself says may be
`disclosed` (names that the request stated, a rounded budget) if the party's policy permits it; the sentence stays in
the party's own log, because it may quote data. The coordinator turns a code back into the class with `from_code`.
"""

from __future__ import annotations

from typing import ClassVar


class ColonnadeError(Exception):
    """The root of the family; never raised itself."""

    code: ClassVar[str] = "internal"

    def __init__(self, *message: object, disclosed: str = "") -> None:
        super().__init__(*message)
        self.disclosed = disclosed
        """What of it a coordinator elsewhere may know: public names, nothing of the data."""


# --- data: what was declared, and what was found ---------------------------------------------------------


class SchemaError(ColonnadeError):
    """Columns, keys or values do not agree with their declaration."""

    code = "schema"


class UnknownColumn(SchemaError):
    """A column that no party declares or holds."""

    code = "unknown-column"


class DuplicateColumn(SchemaError):
    """One block or one columns.toml names a column twice."""

    code = "duplicate-column"


class ColumnConflict(SchemaError):
    """Two parties claim the same column."""

    code = "column-conflict"


class DomainError(SchemaError):
    """A value lies outside its declared public domain, or the domain itself is not declared properly."""

    code = "outside-domain"


class DraftDomain(SchemaError):
    """A bound was drafted from the data and nobody confirmed it."""

    code = "draft-domain"


class KeyProblem(SchemaError):
    """A record key is missing or appears twice."""

    code = "bad-key"


class EmptyParty(SchemaError):
    """A block has no records, or none of them is in the cohort."""

    code = "empty-party"


class SourceError(SchemaError):
    """A source cannot be opened or read."""

    code = "source"


# --- privacy: what may be spent --------------------------------------------------------------------------


class PrivacyError(ColonnadeError):
    """Something about privacy costs or parameters is wrong."""

    code = "privacy"


class BadPrivacyParameter(PrivacyError):
    """Epsilon, delta, a noise scale or a sensitivity is out of range."""

    code = "bad-privacy-parameter"


class BudgetExceeded(PrivacyError):
    """The party's budget does not cover the job."""

    code = "budget-exceeded"


class UnboundedNotAllowed(PrivacyError):
    """A release without a bound was asked for, and the party has not allowed it by name."""

    code = "unbounded-not-allowed"


class CannotAccount(PrivacyError):
    """A cost for which no accountant knows a bound: refused, never guessed."""

    code = "cannot-account"


# --- secure computation ----------------------------------------------------------------------------------


class SecureError(ColonnadeError):
    """A secure computation cannot go on."""

    code = "secure"


class ModulusTooSmall(SecureError):
    """A result could wrap around the modulus."""

    code = "modulus-too-small"


class TooFewHolders(SecureError):
    """Not enough share holders for the threshold that was asked for."""

    code = "too-few-holders"


class SealBroken(SecureError):
    """A sealed message was changed on its way, or was sealed by or for another member."""

    code = "seal-broken"


class VerificationFailed(SecureError):
    """A share holder or a data party has deviated from the protocol, and it shows."""

    code = "verification-failed"


# --- the border of a party -------------------------------------------------------------------------------


class BorderError(ColonnadeError):
    """A request may not cross the border."""

    code = "border"


class UnknownStep(BorderError):
    """This installation has registered no such step."""

    code = "unknown-step"


class UnknownMethod(BorderError):
    """This installation has no such method."""

    code = "unknown-method"


class BadArguments(BorderError):
    """The arguments do not match what was asked."""

    code = "bad-arguments"


class NotApproved(BorderError):
    """The job is not approved at this party, or is closed."""

    code = "not-approved"


class AwaitingApproval(NotApproved):
    """The party's operator has not decided yet."""

    code = "awaiting-approval"


class PackageNotNamed(NotApproved):
    """The method or the step is from a package that this party's configuration does not name under `packages`."""

    code = "package-not-named"


class ReplayMismatch(BorderError):
    """This (job, sequence number) was answered before, for another request."""

    code = "replay-mismatch"


class BeyondReservation(BorderError):
    """The approved plan does not cover this request."""

    code = "beyond-reservation"


class NotARelease(BorderError):
    """A step returned something other than a Release; nothing was sent."""

    code = "not-a-release"


class ColumnNotOffered(BorderError):
    """A job that the party's policy approved by itself reads a column that the policy does not offer."""

    code = "column-not-offered"


class SeedRefused(BorderError):
    """A seed was sent to a party that is not a simulation."""

    code = "seed-refused"


class RosterError(BorderError):
    """The roster is unsound, or is not the one that this party has pinned."""

    code = "roster"


class UnsafeRequest(BorderError):
    """A request that would weaken a guarantee."""

    code = "unsafe-request"


class StepFailed(BorderError):
    """A step raised an error at a party; the details are in the party's log."""

    code = "step-failed"


# --- the federation --------------------------------------------------------------------------------------


class PartyLost(ColonnadeError):
    """A party did not answer."""

    code = "party-lost"


class VersionMismatch(ColonnadeError):
    """Two installations differ."""

    code = "version-mismatch"


class WireError(ColonnadeError):
    """Bytes that are not a message of this protocol."""

    code = "wire"


class CorruptRecord(ColonnadeError):
    """A ledger, transcript or run folder does not verify."""

    code = "corrupt-record"


class StorageError(ColonnadeError):
    """A durable write failed (the disk is full, say)."""

    code = "storage"


class NotEstimable(ColonnadeError):
    """The data, or the noise that protects them, cannot carry the estimate that was asked for."""

    code = "not-estimable"


class TrainingDiverged(NotEstimable):
    """The training of a network diverged; nothing of it is returned."""

    code = "training-diverged"


class RunError(ColonnadeError):
    """A run folder cannot be used or resumed."""

    code = "run"


def _family(root: type[ColonnadeError]) -> list[type[ColonnadeError]]:
    family = [root]
    for child in root.__subclasses__():
        family.extend(_family(child))
    return family


def codes() -> dict[str, type[ColonnadeError]]:
    """The fixed list of codes that may cross a border."""
    return {kind.code: kind for kind in _family(ColonnadeError)}


def from_code(code: str, party: str, where: str, disclosed: str = "") -> ColonnadeError:
    """The coordinator's view of an error at `party`: the class, and what it disclosed or where the details are."""
    kind = codes().get(code, StepFailed)
    if disclosed:
        return kind(f"party {party!r} refused ({kind.code}): {disclosed}", disclosed=disclosed)
    reason = (kind.__doc__ or kind.__name__).strip().splitlines()[0]
    return kind(f"party {party!r} refused ({kind.code}): {reason} Its own log has the details: {where}.")
