"""A secret in a file is refused before anything is made of it, and no verb says what it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dynamo_mlperf.cli import main
from dynamo_mlperf.files import append_json_line, write_json
from dynamo_mlperf.submission.secret_scan import secrets_in
from tests.report.run_builder import build_run

LONG = "abcdEFGH" * 4
HF, KEY, WORD = f"hf_{LONG}", f"nvapi-{LONG}", "hunter2-" + LONG[:6]
PLANTS = {
    "a variable of a role": ("decode: {", "decode: {env: {HF_TOKEN: SECRET}, ", WORD),
    "a variable's value": ("decode: {", "decode: {env: {HTTPS_PROXY: 'http://me:SECRET@proxy:3128'}, ", WORD),
    "a list where a text is wanted": ("decode: {", "decode: {env: {HF_TOKEN: [SECRET]}, ", WORD),
    "a flag": ("args: {", "args: {api-key: SECRET, ", "short"),
    "a flag's value": ("args: {", "args: {served-by: SECRET, ", KEY),
    "inside a flag's JSON": ("args: {", "args: {hf-overrides: {auth_token: SECRET}, ", WORD),
    "a key that does not exist": ("schema: 1", "schema: 1\napi_key: SECRET", "short"),
    "a comment": ("schema: 1", "schema: 1\n# export HF_TOKEN=SECRET", WORD),
    "a batch line": ("#SBATCH", "#SBATCH --comment=SECRET\n#SBATCH", HF),
    "a path": ("dataset: ", "dataset: https://me:SECRET@host/", WORD),
    "a private key": ("schema: 1", "schema: 1\nnote: '-----BEGIN PRIVATE KEY----- SECRET'", WORD),
}
VERBS = (
    ("plan", "FILE"),
    ("plan", "FILE", "--json"),
    ("plan", "FILE", "--fix-batch"),
    ("submit", "FILE", "--dry-run"),
    ("submit", "FILE", "--dry-run", "--json"),
    ("run", "FILE"),
    ("run", "FILE", "--json"),
    ("search", "FILE"),
    ("sweep", "FILE", "--all"),
    ("rehearse", "FILE", "--live"),
    ("measure", "http://127.0.0.1:9", "--model", "m", "--topology", "FILE"),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


def holders(place: Path, secret: str) -> list[str]:
    """Files below that hold the secret."""
    found = [path for path in place.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    return [path.relative_to(place).as_posix() for path in found]


@pytest.mark.parametrize("name", PLANTS)
def test_a_file_that_holds_a_secret_is_refused_by_every_verb_without_showing_it(
    name: str, here: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, secret = PLANTS[name]
    text = (repository / "topologies" / "rehearse-1p1d.yaml").read_text()
    file = here / "mine.yaml"
    assert before in text
    file.write_text(text.replace(before, after.replace("SECRET", secret), 1))
    for words in VERBS:
        assert ended(*(str(file) if word == "FILE" else word for word in words)) == 2, words
        said = capsys.readouterr()
        assert secret not in said.out + said.err, words
        assert "recorded with every run; leave it out" in said.err, (words, said.err)
        assert "(not recorded) like" not in said.err, words
        assert "\n  Try: take it out" in said.err, words
    assert holders(here, secret) == ["mine.yaml"]


def test_a_comment_that_tells_of_secrets_and_holds_none_is_let_pass(here: Path, repository: Path) -> None:
    text = (repository / "topologies" / "rehearse-1p1d.yaml").read_text()
    told = "# api-key: documentation\n# HF_TOKEN: everything is staged, so none is needed\n"
    (here / "mine.yaml").write_text(text.replace("schema: 1", f"{told}schema: 1", 1))
    assert ended("plan", "mine.yaml") == 0


def test_a_site_that_holds_a_secret_is_refused_without_showing_it(
    here: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(repository / "topologies" / "rehearse-1p1d.yaml", here / "mine.yaml")
    for line in (f"environment: {{MY_API_KEY: {WORD}}}", f"prologue: ['login {HF}']", f"# token {HF}\nname: x"):
        (here / "site.yaml").write_text(f"{line}\n")
        assert ended("plan", "mine.yaml", "--site", "./site.yaml") == 2
        said = capsys.readouterr()
        assert "leave it out" in said.err
        assert not {WORD, HF} & set(said.err.replace("'", " ").split())
    (here / "site.yaml").write_text("prologue: ['. /home/me/keys.sh']\n")
    assert ended("plan", "mine.yaml", "--site", "./site.yaml") == 0, "the way out that the error names"


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize(
    "words",
    [
        ("plan", f"{HF}.yaml"),
        ("plan", f"https://me:{WORD}@host/file.yaml"),
        ("plan", "mine.yaml", HF),
        ("plan", f"{HF}-{300 * 'y'}"),
        ("search", "mine.yaml", "--low", f"HF_TOKEN={WORD}"),
        ("report", f"HF_TOKEN={WORD}"),
    ],
)
def test_what_is_given_as_an_argument_is_not_shown_where_it_is_a_secret(
    words: tuple[str, ...], as_json: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell's history has it already; a job's log and a bug report need not."""
    assert ended(*words, *as_json) == 2
    said = capsys.readouterr()
    assert "rror: " in said.err, "it says that something is wrong"
    assert HF not in said.out + said.err
    assert WORD not in said.out + said.err


@pytest.mark.parametrize("secret", [HF, WORD])
def test_a_recorded_run_that_holds_secrets_is_shown_without_them(
    here: Path, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As runs of other versions may, and whatever was written into a run's directory afterwards."""
    for name, kind in (("a", "failed"), ("b", "invalid")):
        paths = build_run(here / "runs" / name, kind, queries=800)  # type: ignore[arg-type]
        planted = f"# HF_TOKEN={secret}{name}\nschema: 1\nhub: 'https://me:{secret}{name}@host/x'"
        keyed = (
            paths.topology.read_text()
            .replace("schema: 1", planted)
            .replace("{max-", f"{{api-key: {secret}{name}, max-")
        )
        paths.topology.write_text(keyed)
        command = {"t": 1.0, "process": "decode-9", "node": 0, "host": "h", "log": "logs/x.log"}
        argv = ["python", "-m", "dynamo.vllm", "--api-key", secret + name, f"--hf-token={secret}{name}"]
        append_json_line(paths.commands, {**command, "argv": argv, "env": {"MY_TOKEN": secret + name}})
        append_json_line(
            paths.events, {"t": 1.0, "event": "job_begin", "laid_over": {"x": {"password": secret + name}}}
        )
        write_json(paths.versions, {"vllm": "1", "source": f"git+https://me:{secret}{name}@host/vllm"})
        (paths.logs / "decode-3.log").write_text(f"args: Namespace(api_key='{secret}{name}', n=1)\nout of memory\n")
    for words in (
        ("report", "a"),
        ("report", "b", "--json"),
        ("diff", "a", "b"),
        ("diff", "a", "b", "--all", "--json"),
        ("diff", "a", "b", "--html", "diff.html"),
        ("status",),
        ("status", "a", "--json"),
    ):
        assert ended(*words) == 0, words
        said = capsys.readouterr()
        assert secret not in said.out + said.err, words
    assert (here / "runs" / "a" / "report.html").read_text().count("(not recorded)") >= 5
    made = {path.relative_to(here).as_posix() for path in here.rglob("*.html")}
    assert made == {"diff.html", "runs/a/report.html", "runs/b/report.html"}
    assert not made & set(holders(here, secret))
    found = secrets_in(sorted((here / "runs" / "a").rglob("*.*")), {})
    assert {Path(one.where).name for one in found} >= {"topology.yaml", "commands.jsonl", "versions.json"}
    assert secret not in "".join(one.text() for one in found), "what `package` says of it"
