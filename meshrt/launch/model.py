"""The values of the launcher's state machine: phases, events, commands, incidents. Standard library only, all frozen.

A *rank* is the number of a worker process, from 0. A *generation* is one attempt at the job: a restart begins the
next one, with a new coordination service on a new port. A job of several *hosts* knows them by name, and each
generation runs on those that are there when it begins. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from meshrt.launch.ranks import Ranks


class Phase(enum.Enum):
    """Where the job stands; README.md says what each phase promises."""

    NEW = "new"
    GATHERING = "gathering"
    WAITING = "waiting"
    FORMING = "forming"
    RUNNING = "running"
    REGROUPING = "regrouping"
    SETTLING = "settling"
    STOPPING = "stopping"
    KILLING = "killing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})


class Timer(enum.Enum):
    """The clocks the machine asks for; all but JOB belong to one phase and are cleared when it is left."""

    GATHER = "gather"  # too few hosts are there
    LAST_CALL = "last call"  # enough hosts are there, and more may come
    BACKOFF = "backoff"  # rest before another attempt
    REGROW = "regrow"  # a host came while the job runs on fewer than it may; more may come
    GROW = "grow"  # ranks that were started to join the others have not been let in
    SHRINK = "shrink"  # ranks that were asked to leave the others have not
    SERVICE = "service"  # the coordination service has not said where it listens
    FORM = "form"  # not every worker connected after the first one tried
    REGROUP = "regroup"  # the workers that are left have not come together
    SETTLE = "settle"  # time for the workers to fail by themselves after a first failure
    GRACE = "grace"  # time to obey the signal that asks to stop
    KILL = "kill"  # time for SIGKILL to take effect
    JOB = "job"  # limit on the whole job


class IncidentKind(enum.Enum):
    """Why a generation ended before every worker finished."""

    WORKER = "worker"
    SERVICE = "service"
    FORMATION = "formation"
    TIMEOUT = "timeout"
    RESIZE = "resize"
    CANCEL = "cancel"
    INTERNAL = "internal"


NEVER_RESTART = 78  # EX_CONFIG of sysexits.h: another attempt with the same configuration fails again


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user asked of the job: sizes, budgets and patience (seconds).

    `nodes` are the fewest and the most hosts of a job of several ones, and `num_processes` then counts those of each
    host. Before the second restart and each later one the job rests: `backoff_s`, and then twice as long each time.
    """

    num_processes: int
    max_restarts: int = 0
    nodes: tuple[int, int] | None = None
    elastic: bool = False  # workers that are left may go on when one fails
    timeout_s: float | None = None
    gather_s: float = 300.0
    last_call_s: float = 30.0
    backoff_s: float = 0.0
    backoff_limit_s: float = 60.0
    regrow_s: float = 5.0
    service_s: float = 60.0
    form_s: float = 300.0
    settle_s: float = 1.0
    grace_s: float = 5.0
    checkpoint_s: float = 300.0  # in place of `grace_s`, where the workers save before they end
    kill_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by exit code, by signal, with its host (`lost`, which says how), or it never started
    (`reason`)."""

    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    lost: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the process finished its work."""
        return self.code == 0

    @property
    def shell_code(self) -> int:
        """The exit code a shell would show: the code itself, or 128 + signal; 1 when it never started."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.code is None else self.code & 0xFF

    def describe(self) -> str:
        """For people: ``exit code 3``, ``killed by SIGKILL``."""
        if self.lost is not None:
            return f"lost with its host: {self.lost}"
        if self.reason is not None:
            return f"could not be started: {self.reason}"
        return f"killed by {signal_name(self.signal)}" if self.signal is not None else f"exit code {self.code}"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 64`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class WorkerError:
    """A Python exception as the worker reported it; `traceback` holds the lines as Python prints them."""

    type: str
    message: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of one process that failed. `rank` None is the coordination service."""

    rank: int | None
    at: float
    status: ExitStatus | None = None
    error: WorkerError | None = None
    tail: tuple[str, ...] = ()
    consequence: str | None = None  # of what, in words; None: a failure of its own
    host: str | None = None  # where it ran; None in a job of one machine


@dataclass(frozen=True, slots=True)
class Incident:
    """The end of a generation: its kind, and every failure in the order seen."""

    kind: IncidentKind
    generation: int
    at: float
    event: int
    detail: str = ""
    signal: int | None = None
    failures: tuple[Failure, ...] = ()
    left_early: tuple[int, ...] = ()  # ranks that had exited with code 0 before


# --- events: what happened. `id` is unique in a job and rises; commands and the story refer to it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at `at` (seconds)."""

    id: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Event):
    """The user asked for the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJoined(Event):
    """A host is there on which processes can be started. `incarnation` names the life of its agent."""

    host: str
    incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost(Event):
    """A host is not there any more; the ends of its processes are told beside this."""

    host: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLeaving(Event):
    """A host is about to go, and nothing else can be started there; what runs there was asked to end."""

    host: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequested(Event):
    """The user wants the job to run on `nodes` hosts from now on, if so many are there."""

    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReady(Event):
    """The coordination service listens at `address` (``host:port``)."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExited(Event):
    """The coordination service's process ended; `tail` is the end of its stderr."""

    status: ExitStatus
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoining(Event):
    """A worker began to connect to the coordination service."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMeshed(Event):
    """A worker is connected, together with all the others; `round` is how often they have come together before."""

    rank: int
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRaised(Event):
    """An exception ended a worker's script; its process may still be there."""

    rank: int
    error: WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """The others cannot go on because of a worker: it is silent, or never comes, or left them. Its process may be
    there still, or have ended well. `ended`: its connection closed without a word, so its process tells how it ended,
    and nobody knows yet whether the others need it."""

    rank: int
    why: str
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAttentive(Event):
    """A worker's script asks at its steps whether a checkpoint is wanted: SIGTERM makes it save. `saving`: it was told
    that one is, and has asked about no step since."""

    rank: int
    saving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGrowable(Event):
    """A worker's script asks at its steps whether others wait to join: it can let them in."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft(Event):
    """A worker has left the others, which go on with what it held of the state, and is about to end."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTold(Event):
    """The checkpoint of a step is being written, or is complete (`committed`)."""

    step: int
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited(Event):
    """A worker's process ended, with everything in its process group; `tail` is the end of its stderr."""

    rank: int
    status: ExitStatus
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    """A clock that the machine had asked for ran out."""

    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """The launcher itself was told to stop, by `signal`; with None it cannot go on, and `why` says that."""

    signal: int | None
    why: str = ""


# --- commands: what the shell must do, in order. `cause` is the id of the event that led to it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to do because of event `cause`."""

    cause: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartService(Command):
    """Start a coordination service for this generation; answer ServiceReady or ServiceExited."""

    generation: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers(Command):
    """Start every rank; each answers with one WorkerExited in the end, also when it cannot be started. In a job of
    several hosts, each of `hosts` gets as many ranks as any other, in this order."""

    generation: int
    address: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNewcomers(Command):
    """Start these ranks beside those that run, to join them; each answers as those of StartWorkers do."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWorkers(Command):
    """Send `signal` to the process groups of `ranks`."""

    ranks: tuple[int, ...]
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireService(Command):
    """End the coordination service, which no worker uses any more; ServiceExited follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Command):
    """Fire `timer` after `seconds`, replacing the former one; None clears it."""

    timer: Timer
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce(Command):
    """Tell the user that a generation ends; `restart` is the generation that follows, if one does. Or it goes on, with
    `left` workers."""

    incident: Incident
    restart: int | None = None
    left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell(Command):
    """Tell the user."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Command):
    """The job is over; leave with `exit_code`."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One change of phase and the event that caused it."""

    event: int
    at: float
    what: str
    generation: int
    before: Phase
    after: Phase


_NOBODY = Ranks()


@dataclass(frozen=True, slots=True)
class State:
    """The whole truth about a job."""

    policy: Policy
    phase: Phase = Phase.NEW
    generation: int = 0
    hosts: tuple[str, ...] = ()  # that are there, in the order in which they came
    leaving: frozenset[str] = frozenset()  # that asked their ranks of this generation to end
    chosen: tuple[str, ...] = ()  # of this generation
    most: int | None = None  # hosts that the user wants at most, below the policy's
    called: bool = False  # the last call for hosts is over
    resting: bool = False
    address: str = ""  # of this generation's coordination service
    live: Ranks = _NOBODY
    service_live: bool = False
    joining: Ranks = _NOBODY
    meshed: Ranks = _NOBODY  # have told that they came together, for the last time: `round`
    round: int = 0
    finished: Ranks = _NOBODY
    vanished: Ranks = _NOBODY  # left the others without a word
    departed: Ranks = _NOBODY  # failed, and the others went on
    added: tuple[str | None, ...] = ()  # hosts of the ranks that were started to join the others, in their order
    slots: tuple[int, ...] = ()  # and their places among the ranks of these hosts
    coming: Ranks = _NOBODY  # those of them that are not let in yet
    parting: Ranks = _NOBODY  # were asked to leave the others; who of them runs has not yet
    parted: Ranks = _NOBODY  # have left them, in this generation
    crashed: Ranks = _NOBODY  # departed, not with their hosts, and nobody has taken their places
    replaced: int = 0  # how often ranks were started in the places of such ones
    growable: bool = False  # workers let others in
    attentive: bool = False  # a worker saves when it is asked to
    saving: Ranks = _NOBODY  # were asked, and have not gone on
    writing: frozenset[int] = frozenset()  # steps whose checkpoints are being written
    asked: frozenset[int] | None = None  # what was being written when workers were asked to save, if they were
    committed: int = -1  # the furthest step of which there is a checkpoint
    forgiven: int = 0  # restarts before that checkpoint
    incident: Incident | None = None
    incidents: tuple[Incident, ...] = ()
    no_restart: bool = False
    story: tuple[StoryLine, ...] = ()

    @property
    def first_size(self) -> int:
        """The number of ranks with which this generation began."""
        return self.policy.num_processes * (1 if self.policy.nodes is None else len(self.chosen))

    @property
    def size(self) -> int:
        """The number of ranks of this generation, those that are gone included."""
        return self.first_size + len(self.added)

    @property
    def restarts(self) -> int:
        """How many generations followed a failure; those after a resize do not count."""
        return self.generation - sum(i.kind is IncidentKind.RESIZE for i in self.incidents)

    @property
    def charged(self) -> int:
        """The restarts that the budget counts: those since the job last came further, which a checkpoint shows, be it
        of all ranks or of some beside the others."""
        return self.restarts + self.replaced - self.forgiven

    @property
    def service_host(self) -> str | None:
        """Where the coordination service of this generation runs, with the door; None in a job of one machine."""
        return self.chosen[0] if self.chosen else None

    def host_of(self, rank: int) -> str | None:
        """Where a rank of this generation runs; None in a job of one machine."""
        if rank >= self.first_size:
            return self.added[rank - self.first_size]
        return self.chosen[rank // self.policy.num_processes] if self.chosen else None

    def slot_of(self, rank: int) -> int:
        """The place of a rank of this generation among those of its host, from 0: no two that run have the same."""
        return self.slots[rank - self.first_size] if rank >= self.first_size else rank % self.policy.num_processes
