"""`meshrt inspect`: reports of good input, one line and exit code 2 for bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from collectives.errors import TopologyError
from collectives.topology import load
from meshrt.errors import InspectError
from meshrt.inspect.annotations import Annotations
from meshrt.inspect.guard import Limits, inspect_file
from meshrt.inspect.model import Report
from meshrt.inspect.target import parse_mesh, split_target

ROOT = Path(__file__).resolve().parents[3]
MATMUL = """sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
                %w: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}) -> tensor<8x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32> }"""
BAD_AXIS = MATMUL.replace('[{"data"}, {"model"}]', '[{"dta"}, {"model"}]')


def inspect(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "meshrt", "inspect", *arguments]
    return subprocess.run(command, cwd=ROOT, input=stdin, check=False, capture_output=True, timeout=300)


@pytest.fixture
def matmul(tmp_path):
    path = tmp_path / "matmul.mlir"
    path.write_text(MATMUL)
    return str(path)


@pytest.mark.smoke
def test_report_of_a_file(matmul):
    report = Report.from_json(inspect_file(matmul)["report"])
    assert report.mesh == (("data", 4), ("model", 2)) and report.devices == 8
    assert [(v.name, v.type, v.sharding, v.global_bytes, v.device_bytes) for v in report.arguments] == [
        ("arg0", "f32[8,16]", "(data, model)", 512, 64),
        ("arg1", "f32[16,32]", "(model, -)", 2048, 1024),
    ]
    (collective,) = report.collectives
    assert (collective.kind, collective.axes, collective.times) == ("all_reduce", "model", 1)
    assert collective.bytes == report.bytes == 2 * 1 / 2 * 2 * 32 * 4
    assert Report.from_json(json.loads(json.dumps(report.as_json()))) == report


def test_json_and_stages_on_the_command_line(matmul):
    out = json.loads(inspect(matmul, "--json").stdout)
    assert out["totals"]["devices"] == 8 and out["collectives"][0]["kind"] == "all_reduce"
    text = inspect(matmul, "--stage", "partitioned").stdout.decode()
    assert "stablehlo.all_reduce" in text and "tensor<2x8xf32>" in text
    assert '{"data"}' in inspect("-", "--stage", "propagated", stdin=MATMUL.encode()).stdout.decode()


def test_a_stage_says_what_was_annotated_from_outside(matmul, tmp_path):
    """The program that is printed is the one that the report is of, wherever it came from."""
    said = Annotations({"arg0": (("model",), ())})
    text = inspect_file(matmul, stage="lowered", annotations=said)["text"]
    assert '[{"model"}, {}]' in text.split("%arg1")[0] and '[{"data"}, {"model"}]' not in text
    path = tmp_path / "lowered.mlir"
    path.write_text(text)
    one, other = inspect_file(matmul, annotations=said)["report"], inspect_file(str(path))["report"]
    assert one["collectives"] and other["totals"] == one["totals"]


def test_what_a_partitioner_wrote_sends_and_holds_what_the_program_does(matmul, tmp_path):
    """A program for several replicas is read as that of one device among them."""
    path = tmp_path / "device.mlir"
    path.write_text(inspect_file(matmul, stage="partitioned")["text"])
    before, after = (Report.from_json(inspect_file(str(p))["report"]) for p in (matmul, path))
    assert (after.bytes, after.memory.peak_bytes, after.devices) == (before.bytes, before.memory.peak_bytes, 8)
    told = lambda report: [(c.kind, c.groups, c.group_size, c.bytes) for c in report.collectives]
    assert told(after) == told(before) and [f.kind for f in after.findings] == ["replicas"]


def test_a_module_of_jax_as_text_and_bytecode(tmp_path):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    traced = jax.jit(lambda x: jnp.tanh(x).sum(1))
    lowered = traced.lower(x)
    text, code = tmp_path / "a.mlir", tmp_path / "a.mlirbc"
    text.write_text(lowered.as_text(debug_info=True))
    module = lowered.compiler_ir()
    with open(code, "wb") as file:
        module.operation.write_bytecode(file)
    exported = tmp_path / "a.export"
    exported.write_bytes(jax.export.export(traced)(x).serialize())
    reports = [inspect_file(str(p))["report"] for p in (text, code, exported)]
    for report in reports:
        assert report["arguments"][0]["name"] == "x"
        assert [(c["kind"], c["axes"]) for c in report["collectives"]] == [("all_reduce", "model")]
        assert report["collectives"][0]["where"].endswith(f"{Path(__file__).name}:{_line_of('jnp.tanh(x)')}")


def _line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_explain_names_the_chain_to_the_annotation(matmul):
    lines = inspect_file(matmul, explain="result0:0")["report"]["explanations"]
    assert lines[0].startswith("dimension 0 of result0 (f32[") and "got axis 'data' through dot_general" in lines[0]
    assert "dimension 0 of arg0 (f32[" in lines[-1] and "annotated with axis 'data' by the user" in lines[-1]
    with pytest.raises(InspectError, match="nothing is called 'nonsense'"):
        inspect_file(matmul, explain="nonsense:0")
    explained = lambda query: inspect_file(matmul, explain=query)["report"]["explanations"]
    assert explained("arg0") == explained("arg0:0") + explained("arg0:1")
    assert {*explained(f"{matmul}:4")} >= {*explained(f"{matmul}:4:0")} != set()
    with pytest.raises(InspectError, match="nothing is called 'arg0:x'"):
        inspect_file(matmul, explain="arg0:x")
    with pytest.raises(InspectError, match="no dimension 7"):
        inspect_file(matmul, explain="arg0:7")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "the file is empty"),
        (b'{\n "name": "x"}', "is JSON, not StableHLO; a report that --json wrote goes with --against"),
        (bytes(range(256)) * 8, "neither MLIR text nor MLIR bytecode"),
        (MATMUL[:-60].encode(), "expected"),
        (BAD_AXIS.encode(), 'unknown axis name: "dta"'),
        (b"ML\xefR" + bytes(range(256)), "bytecode"),
        (b"module {\n" * 200_000, "brackets are nested more than 128 deep"),
        (b"func.func @main() { cf.br ^a ^a: cf.br ^a }", ""),
        (b"HloModule jit_f, entry_computation_layout={()->f32[]}", "is HLO text"),
        (b"func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }", "static shapes"),
        (b"module {}", "none is @main"),
    ],
    ids=[
        "empty",
        "json",
        "garbage",
        "truncated",
        "unknown axis",
        "bad bytecode",
        "nested",
        "blocks",
        "hlo",
        "dynamic",
        "none",
    ],
)
def test_bad_files_end_in_one_line(tmp_path, content, message):
    path = tmp_path / "bad.mlir"
    path.write_bytes(content)
    with pytest.raises(InspectError) as error:
        inspect_file(str(path))
    assert message in str(error.value) and str(path) in str(error.value)
    assert "Traceback" not in str(error.value)


def test_limits_of_size_time_and_kind(tmp_path, matmul):
    with pytest.raises(InspectError, match="is the limit"):
        inspect_file(matmul, limits=Limits(file_bytes=100))
    with pytest.raises(InspectError, match=r"not finished after 0\.01 s"):
        inspect_file(matmul, limits=Limits(seconds=0.01))
    with pytest.raises(InspectError, match="is a directory"):
        inspect_file(str(tmp_path))


def test_limits_that_the_process_has_already_stay():
    """Soft limits are limits, too: `limit` lowers them, and never raises one."""
    script = """import json, resource
from meshrt.inspect.child import limit
resource.setrlimit(resource.RLIMIT_CPU, (300, 1000))
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, resource.RLIM_INFINITY))
limit(8 << 30, 500)
kept = [resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
limit(4 << 30, 200)
print(json.dumps([kept, [resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]]))"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, timeout=300)
    kept, lowered = json.loads(done.stdout)
    assert kept == [[300, 501], [6 << 30, 8 << 30]]
    assert lowered == [[200, 201], [4 << 30, 4 << 30]]


def test_what_is_no_file_does_not_block(tmp_path, matmul):
    pipe, module = tmp_path / "pipe", tmp_path / "pipe.py"
    for path in (pipe, module):
        os.mkfifo(path)
    for path, message in [(str(pipe), "is a pipe"), ("/dev/zero", "is a device"), ("/dev/null", "is a device")]:
        with pytest.raises(InspectError, match=message):
            inspect_file(path)
    done = inspect(f"{module}:step", "--mesh", "data=2")
    assert done.returncode == 2 and b"is not a file" in done.stderr
    done = inspect(matmul, "--topology", str(pipe))
    assert done.returncode == 2 and b"is a pipe, not a file; give a file as in configs" in done.stderr
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(TopologyError, match="is no file"):
        load(tmp_path / "pipe.toml")


def test_numbers_that_are_none(matmul):
    for query in ("x:\N{SUPERSCRIPT TWO}", "x:" + "9" * 5000):
        with pytest.raises(InspectError, match="nothing is called"):
            inspect_file(matmul, explain=query)
    with pytest.raises(InspectError, match="expected axes with their sizes"):
        parse_mesh("data=" + "9" * 5000)


def test_what_programs_may_not_do_is_shown_of_foreign_ones(tmp_path):
    """A kernel that nothing is known of has its operand gathered, with a finding; a result may be left unreduced."""
    path = tmp_path / "foreign.mlir"
    path.write_text("""sdy.mesh @m = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"a"}, {}]>}) -> (tensor<8x4xf32>,
          tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"a"}, {}], unreduced={"b"}>}) {
        %0 = stablehlo.custom_call @my_kernel(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
        return %0, %x : tensor<8x4xf32>, tensor<8x4xf32> }""")
    report = inspect_file(str(path))["report"]
    (found,) = report["findings"]
    assert found["bytes"] == report["bytes"] == 96 and "custom_call @my_kernel has no sharding rule" in found["message"]
    assert report["results"][1]["sharding"] == "(a, -) unreduced b"
    assert report["totals"]["replicated_argument_bytes"] == 0


def test_a_value_on_one_device(tmp_path):
    """As jax writes what Python gives that is called back."""
    call = '@xla_ffi_python_cpu_callback(%x) {backend_config = "", '
    call += "mhlo.backend_config = {index = 0 : ui64}, sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}"
    path = tmp_path / "placed.mlir"
    path.write_text(
        f"""sdy.mesh @mesh = <["data"=4]>
        sdy.mesh @one = <[], device_ids=[0]>
        func.func @main(%x: tensor<8x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}})
            -> tensor<8x4xf32> {{
          %0 = stablehlo.custom_call {call} : (tensor<8x4xf32>) -> tensor<8x4xf32>
          %1 = stablehlo.add %x, %0 : tensor<8x4xf32>
          return %1 : tensor<8x4xf32> }}"""
    )
    report = inspect_file(str(path), with_program=True, rules=["conflict", "redundant", "replicated"])["report"]
    (given,) = (o["results"] for o in report["program"]["operations"] if o["kind"] == "custom_call")
    value = report["program"]["values"][given[0]]
    assert (value["device_type"], value["global_bytes"], value["device_bytes"]) == ("f32[8,4]", 128, 128)


def test_a_pipe_that_a_shell_opened(matmul):
    command = f"{sys.executable} -m meshrt inspect <(cat {matmul})"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, cwd=ROOT)
    assert done.returncode == 0 and b"all_reduce" in done.stdout, done.stderr.decode()


def test_functions_that_call_each_other_too_often(tmp_path):
    """Each of 40 functions calls the next one twice."""
    call = "func.call @f{0}({1}) : (tensor<8xf32>) -> tensor<8xf32>"
    body = (
        "func.func private @f{0}(%a: tensor<8xf32>) -> tensor<8xf32> {{ %b = {1} %c = {2} return %c : tensor<8xf32> }}"
    )
    text = [body.format(i, call.format(i + 1, "%a"), call.format(i + 1, "%b")) for i in range(40)]
    text[0] = text[0].replace("private @f0", "public @main")
    text.append("func.func private @f40(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }")
    path = tmp_path / "calls.mlir"
    path.write_text("\n".join(text))
    with pytest.raises(InspectError, match="operations with its calls inlined"):
        inspect_file(str(path))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["missing.mlir"], "No such file"),
        ([""], "no file was named"),
        (["examples"], "is a directory"),
        (["missing.py:step", "--mesh", "data=2"], "no such file"),
        (["missing.py:step"], "no such file"),
        (["examples/train_lm.py:step"], "needs a mesh"),
        (["examples/train_lm.py"], "name a function"),
        (["examples/train_lm.py:stop", "--mesh", "data=2,model=2"], "has no stop"),
        (["examples/train_lm.py:step", "--mesh", "data=3,model=2"], "data"),
        (["examples/train_lm.py:step", "--mesh", "data=4"], "model"),
        (["examples/train_lm.py:step", "--mesh", "data"], "expected axes with their sizes"),
    ],
)
def test_bad_arguments_end_in_one_line_and_code_2(arguments, message):
    done = inspect(*arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1, done.stderr.decode()
    assert lines[0].startswith("meshrt: error: ") and message in lines[0]


@pytest.mark.smoke
def test_the_example_over_a_mesh_without_devices():
    done = inspect("examples/train_lm.py:step", "--mesh", "data=8,model=4", "--json")
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    arguments = {a["name"]: a for a in report["arguments"]}
    assert report["totals"]["devices"] == 32
    assert arguments["state['params']['qkv']"]["sharding"] == "(-, data, -, model, -)"
    assert (
        arguments["state['params']['qkv']"]["device_bytes"] * 32 == arguments["state['params']['qkv']"]["global_bytes"]
    )
    assert arguments["tokens"]["sharding"] == "(data, -)"
    lines = (ROOT / "examples" / "train_lm.py").read_text().splitlines()
    in_scan = [c for c in report["collectives"] if c["times"] == 4]
    assert {c["kind"] for c in in_scan} >= {"all_gather", "all_reduce"}
    places = [c["where"] for c in report["collectives"] if c["where"]]
    assert places and all("train_lm.py:" in p and int(p.rpartition(":")[2]) <= len(lines) for p in places)


def test_user_errors_name_their_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import meshrt as jax\n\nraise ValueError('no data')\n")
    done = inspect(f"{path}:step", "--mesh", "data=2")
    assert done.returncode == 2 and f"{path}:3: ValueError: no data" in done.stderr.decode()


def test_parse_mesh_and_target():
    assert parse_mesh("data=4, model=2") == {"data": 4, "model": 2}
    for bad in ("data", "data=x", "data=0", "data=2,data=2", "=2", ""):
        with pytest.raises(InspectError):
            parse_mesh(bad)
    assert split_target("a/b.py:step") == (Path("a/b.py"), "step")
    assert split_target("a/b.mlir") is None and split_target("b.py") is None
