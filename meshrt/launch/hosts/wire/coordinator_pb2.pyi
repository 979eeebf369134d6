from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KnockRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    def __init__(self, nonce: _Optional[str] = ...) -> None: ...

class KnockReply(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    proof: str
    def __init__(self, nonce: _Optional[str] = ..., proof: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("generation", "rank")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("name", "address", "incarnation", "versions", "tasks", "cores", "again", "output")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    incarnation: str
    versions: _containers.ScalarMap[str, str]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    cores: int
    again: bool
    output: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., cores: _Optional[int] = ..., again: bool = ..., output: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("job", "beat_s", "lease_s", "directory", "checkpoint_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BEAT_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    beat_s: float
    lease_s: float
    directory: str
    checkpoint_s: float
    def __init__(self, job: _Optional[str] = ..., beat_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., directory: _Optional[str] = ..., checkpoint_s: _Optional[float] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("at",)
    AT_FIELD_NUMBER: _ClassVar[int]
    at: float
    def __init__(self, at: _Optional[float] = ...) -> None: ...

class Exited(_message.Message):
    __slots__ = ("code", "signal", "reason", "output")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    code: int
    signal: int
    reason: str
    output: int
    def __init__(self, code: _Optional[int] = ..., signal: _Optional[int] = ..., reason: _Optional[str] = ..., output: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("seq", "task", "at", "said", "exited")
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
    def __init__(self, seq: _Optional[int] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., at: _Optional[float] = ..., said: _Optional[bytes] = ..., exited: _Optional[_Union[Exited, _Mapping]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("join", "beat", "report", "leaving", "mac")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    join: JoinRequest
    beat: Beat
    report: Report
    leaving: Leaving
    mac: bytes
    def __init__(self, join: _Optional[_Union[JoinRequest, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., mac: _Optional[bytes] = ...) -> None: ...

class ServiceSpec(_message.Message):
    __slots__ = ("generation", "num_processes", "bind", "secret", "silent_s", "stall_s")
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
    def __init__(self, generation: _Optional[int] = ..., num_processes: _Optional[int] = ..., bind: _Optional[str] = ..., secret: _Optional[str] = ..., silent_s: _Optional[float] = ..., stall_s: _Optional[float] = ...) -> None: ...

class WorkerSpec(_message.Message):
    __slots__ = ("generation", "rank", "num_processes", "max_restarts", "address", "secret", "target", "devices_per_process", "variables")
    class VariablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
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
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., num_processes: _Optional[int] = ..., max_restarts: _Optional[int] = ..., address: _Optional[str] = ..., secret: _Optional[str] = ..., target: _Optional[_Iterable[str]] = ..., devices_per_process: _Optional[int] = ..., variables: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("services", "workers")
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[ServiceSpec]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerSpec]
    def __init__(self, services: _Optional[_Iterable[_Union[ServiceSpec, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerSpec, _Mapping]]] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("tasks", "number")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    number: int
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class Stale(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("seq", "output")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    output: int
    def __init__(self, seq: _Optional[int] = ..., output: _Optional[int] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ("beat_s",)
    BEAT_S_FIELD_NUMBER: _ClassVar[int]
    beat_s: float
    def __init__(self, beat_s: _Optional[float] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("exit_code", "why")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    why: str
    def __init__(self, exit_code: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("alive", "prepare", "signal", "settled", "stale", "over", "joined", "mac")
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    alive: Alive
    prepare: Prepare
    signal: Signal
    settled: Settled
    stale: Stale
    over: Over
    joined: JoinReply
    mac: bytes
    def __init__(self, alive: _Optional[_Union[Alive, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., signal: _Optional[_Union[Signal, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., stale: _Optional[_Union[Stale, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ..., joined: _Optional[_Union[JoinReply, _Mapping]] = ..., mac: _Optional[bytes] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("name", "incarnation", "task", "stderr", "data", "at", "number", "mac")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    task: Task
    stderr: bool
    data: bytes
    at: float
    number: int
    mac: bytes
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., stderr: bool = ..., data: _Optional[bytes] = ..., at: _Optional[float] = ..., number: _Optional[int] = ..., mac: _Optional[bytes] = ...) -> None: ...

class LogReceipt(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    def __init__(self, chunks: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("name", "address", "connected", "silent_s", "ranks", "cores")
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
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., connected: bool = ..., silent_s: _Optional[float] = ..., ranks: _Optional[_Iterable[int]] = ..., cores: _Optional[int] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("rank", "state", "host")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: str
    host: str
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("job", "phase", "generation", "restarts", "max_restarts", "min_nodes", "max_nodes", "hosts", "ranks", "incidents", "running_s", "command", "mac")
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
    MAC_FIELD_NUMBER: _ClassVar[int]
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
    mac: bytes
    def __init__(self, job: _Optional[str] = ..., phase: _Optional[str] = ..., generation: _Optional[int] = ..., restarts: _Optional[int] = ..., max_restarts: _Optional[int] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., incidents: _Optional[_Iterable[str]] = ..., running_s: _Optional[float] = ..., command: _Optional[str] = ..., mac: _Optional[bytes] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("ranks", "lines", "follow", "after")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    lines: int
    follow: bool
    after: int
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., lines: _Optional[int] = ..., follow: bool = ..., after: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("host", "task", "stderr", "line", "number", "mac")
    HOST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    host: str
    task: Task
    stderr: bool
    line: bytes
    number: int
    mac: bytes
    def __init__(self, host: _Optional[str] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., stderr: bool = ..., line: _Optional[bytes] = ..., number: _Optional[int] = ..., mac: _Optional[bytes] = ...) -> None: ...

class ResizeRequest(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    def __init__(self, nodes: _Optional[int] = ...) -> None: ...

class ResizeReply(_message.Message):
    __slots__ = ("answer", "mac")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    answer: str
    mac: bytes
    def __init__(self, answer: _Optional[str] = ..., mac: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("answer", "mac")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    answer: str
    mac: bytes
    def __init__(self, answer: _Optional[str] = ..., mac: _Optional[bytes] = ...) -> None: ...
