from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar
from typing import Union as _Union

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class KnockRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    def __init__(self, nonce: str | None = ...) -> None: ...

class KnockReply(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    proof: str
    def __init__(self, nonce: str | None = ..., proof: str | None = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("generation", "rank")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    def __init__(self, generation: int | None = ..., rank: int | None = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("address", "again", "cores", "incarnation", "name", "tasks", "versions")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    incarnation: str
    versions: _containers.ScalarMap[str, str]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    cores: int
    again: bool
    def __init__(self, name: str | None = ..., address: str | None = ..., incarnation: str | None = ..., versions: _Mapping[str, str] | None = ..., tasks: _Iterable[_Union[Task, _Mapping]] | None = ..., cores: int | None = ..., again: bool = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("beat_s", "directory", "job", "lease_s", "nonces")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BEAT_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    job: str
    beat_s: float
    lease_s: float
    directory: str
    nonces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: str | None = ..., beat_s: float | None = ..., lease_s: float | None = ..., directory: str | None = ..., nonces: _Iterable[str] | None = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("incarnation", "name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    def __init__(self, name: str | None = ..., incarnation: str | None = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("at",)
    AT_FIELD_NUMBER: _ClassVar[int]
    at: float
    def __init__(self, at: float | None = ...) -> None: ...

class Exited(_message.Message):
    __slots__ = ("chunks", "code", "reason", "signal")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    code: int
    signal: int
    reason: str
    chunks: int
    def __init__(self, code: int | None = ..., signal: int | None = ..., reason: str | None = ..., chunks: int | None = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("at", "exited", "said", "seq", "task")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    seq: int
    task: Task
    at: float
    said: bytes
    exited: Exited
    def __init__(self, seq: int | None = ..., task: _Union[Task, _Mapping] | None = ..., at: float | None = ..., said: bytes | None = ..., exited: _Union[Exited, _Mapping] | None = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: str | None = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("beat", "leaving", "opening", "report")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    opening: Opening
    beat: Beat
    report: Report
    leaving: Leaving
    def __init__(self, opening: _Union[Opening, _Mapping] | None = ..., beat: _Union[Beat, _Mapping] | None = ..., report: _Union[Report, _Mapping] | None = ..., leaving: _Union[Leaving, _Mapping] | None = ...) -> None: ...

class ServiceSpec(_message.Message):
    __slots__ = ("bind", "generation", "num_processes", "secret", "silent_s", "stall_s")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    generation: int
    num_processes: int
    bind: str
    secret: str
    silent_s: float
    stall_s: float
    def __init__(self, generation: int | None = ..., num_processes: int | None = ..., bind: str | None = ..., secret: str | None = ..., silent_s: float | None = ..., stall_s: float | None = ...) -> None: ...

class WorkerSpec(_message.Message):
    __slots__ = ("address", "devices_per_process", "generation", "max_restarts", "num_processes", "rank", "secret", "target", "variables")
    class VariablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEVICES_PER_PROCESS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    num_processes: int
    max_restarts: int
    address: str
    secret: str
    target: _containers.RepeatedScalarFieldContainer[str]
    devices_per_process: int
    variables: _containers.ScalarMap[str, str]
    def __init__(self, generation: int | None = ..., rank: int | None = ..., num_processes: int | None = ..., max_restarts: int | None = ..., address: str | None = ..., secret: str | None = ..., target: _Iterable[str] | None = ..., devices_per_process: int | None = ..., variables: _Mapping[str, str] | None = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("services", "workers")
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[ServiceSpec]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerSpec]
    def __init__(self, services: _Iterable[_Union[ServiceSpec, _Mapping]] | None = ..., workers: _Iterable[_Union[WorkerSpec, _Mapping]] | None = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("number", "tasks")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    number: int
    def __init__(self, tasks: _Iterable[_Union[Task, _Mapping]] | None = ..., number: int | None = ...) -> None: ...

class Stale(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: str | None = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: int | None = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Over(_message.Message):
    __slots__ = ("exit_code", "why")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    why: str
    def __init__(self, exit_code: int | None = ..., why: str | None = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("alive", "over", "prepare", "settled", "signal", "stale")
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    alive: Alive
    prepare: Prepare
    signal: Signal
    settled: Settled
    stale: Stale
    over: Over
    def __init__(self, alive: _Union[Alive, _Mapping] | None = ..., prepare: _Union[Prepare, _Mapping] | None = ..., signal: _Union[Signal, _Mapping] | None = ..., settled: _Union[Settled, _Mapping] | None = ..., stale: _Union[Stale, _Mapping] | None = ..., over: _Union[Over, _Mapping] | None = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("at", "data", "incarnation", "name", "stderr", "task")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    task: Task
    stderr: bool
    data: bytes
    at: float
    def __init__(self, name: str | None = ..., incarnation: str | None = ..., task: _Union[Task, _Mapping] | None = ..., stderr: bool = ..., data: bytes | None = ..., at: float | None = ...) -> None: ...

class LogReceipt(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    def __init__(self, chunks: int | None = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("address", "connected", "cores", "name", "ranks", "silent_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    connected: bool
    silent_s: float
    ranks: _containers.RepeatedScalarFieldContainer[int]
    cores: int
    def __init__(self, name: str | None = ..., address: str | None = ..., connected: bool = ..., silent_s: float | None = ..., ranks: _Iterable[int] | None = ..., cores: int | None = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("host", "rank", "state")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: str
    host: str
    def __init__(self, rank: int | None = ..., state: str | None = ..., host: str | None = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("command", "generation", "hosts", "incidents", "job", "max_nodes", "max_restarts", "min_nodes", "phase", "ranks", "restarts", "running_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_S_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    job: str
    phase: str
    generation: int
    restarts: int
    max_restarts: int
    min_nodes: int
    max_nodes: int
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    incidents: _containers.RepeatedScalarFieldContainer[str]
    running_s: float
    command: str
    def __init__(self, job: str | None = ..., phase: str | None = ..., generation: int | None = ..., restarts: int | None = ..., max_restarts: int | None = ..., min_nodes: int | None = ..., max_nodes: int | None = ..., hosts: _Iterable[_Union[HostStatus, _Mapping]] | None = ..., ranks: _Iterable[_Union[RankStatus, _Mapping]] | None = ..., incidents: _Iterable[str] | None = ..., running_s: float | None = ..., command: str | None = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("follow", "lines", "ranks")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    lines: int
    follow: bool
    def __init__(self, ranks: _Iterable[int] | None = ..., lines: int | None = ..., follow: bool = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("host", "line", "stderr", "task")
    HOST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    host: str
    task: Task
    stderr: bool
    line: bytes
    def __init__(self, host: str | None = ..., task: _Union[Task, _Mapping] | None = ..., stderr: bool = ..., line: bytes | None = ...) -> None: ...

class ResizeRequest(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    def __init__(self, nodes: int | None = ...) -> None: ...

class ResizeReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: str
    def __init__(self, answer: str | None = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: str
    def __init__(self, answer: str | None = ...) -> None: ...
