"""Checks before AWS is called, compared with botocore's description of the API; and costs."""

import json
import re
import subprocess
import sys
import tarfile
from io import BytesIO

import botocore.session
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_world import SAGEMAKER, run_command

import cloudformation
from gluonlab_sagemaker import instances
from gluonlab_sagemaker.checks import check_bucket, check_environment, check_name, check_repository
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.options import Dependencies
from gluonlab_sagemaker.role import MAX_ROLE_NAME_LENGTH, notebook_role_name
from gluonlab_sagemaker.source import create_archive

FROM = ("--repository", "https://git.example.org/gluonlab.git")
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,70}")
SHAPES = botocore.session.get_session().get_service_model("sagemaker")


def is_name(text):
    rule = SHAPES.shape_for("NotebookInstanceName").metadata
    return len(text) <= rule["max"] and re.fullmatch(rule["pattern"], text) is not None


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text("abcAZ09-_. é\n", max_size=70), st.from_regex(NAME, fullmatch=True)))
def test_a_name_is_refused_exactly_when_aws_would(text):
    if is_name(text):
        assert check_name("--name", text) == text
    else:
        with pytest.raises(RefusedError, match="use at most 63 letters"):
            check_name("--name", text)


@given(st.from_regex(NAME, fullmatch=True).filter(is_name), st.sampled_from(["us-east-1", "ap-southeast-2"]))
@settings(max_examples=50, deadline=None)
def test_every_notebook_has_a_role_name_that_iam_takes(name, region):
    role = notebook_role_name(name, region)
    assert re.fullmatch(r"[\w+=,.@-]+", role)
    assert len(role) <= MAX_ROLE_NAME_LENGTH
    assert role != notebook_role_name(name, "eu-west-1")


def test_long_names_that_begin_alike_have_different_roles():
    assert len({notebook_role_name("a" * 61 + end, "us-east-1") for end in ("", "b", "c", "cc")}) == 4


VARIABLES = st.one_of(
    st.text("AB_1= '\"@$\n/:é", max_size=5),
    st.from_regex(r"[AB_]{1,2}=[a-z:/.-]{0,9}", fullmatch=True),
    st.integers(480, 520).map(lambda length: "LONG=".ljust(length, "x")),
)


@given(st.lists(VARIABLES, max_size=3))
@settings(max_examples=200, deadline=None)
def test_variables_are_taken_exactly_when_the_stack_would_take_them(given):
    """A list is also refused if it repeats a name, or has two variables in one element."""
    rule = cloudformation.load_template(SAGEMAKER / "notebook.yaml")["Parameters"]["Environment"]
    text, names = " ".join(given), [item.partition("=")[0] for item in given]
    fits = len(text) <= rule["MaxLength"] and re.fullmatch(rule["AllowedPattern"][1:-1], text)
    if fits and len(names) == len(set(names)) and " " not in "".join(given) and all(given):
        assert check_environment(given) == text
    else:
        with pytest.raises(RefusedError, match="--environment") as raised:
            check_environment(given)
        assert "xx" not in str(raised.value)  # of what may be a password


@pytest.mark.parametrize(
    ("check", "text", "message"),
    [
        *((check_bucket, text, f"--bucket {text} is not a bucket name") for text in (
            "s3://my-bucket", "My-Bucket", "a", "my_bucket", "my-bucket/gluonlab", "b" * 64, "-ab",
        )),
        *((check_repository, text, "use an https:// address") for text in (
            "git@host:x/y.git", "http://host/x", "https://user:secret@host/x", "https://host/'x'",
            "/here",
        )),
    ],
)  # fmt: skip
def test_what_is_no_bucket_or_repository_is_refused_and_no_password_is_repeated(check, text, message):
    with pytest.raises(RefusedError, match=message) as raised:
        check(text)
    assert "secret" not in str(raised.value)


FROM_IT = " ".join(FROM)
G5 = f"create --instance g5.12xlarge {FROM_IT}"
SUBMIT = "jobs submit --bucket their-bucket --role arn:aws:iam::111122223333:role/mine --no-upload"
AL2, AL2023 = "--platform notebook-al2-v2", "--platform notebook-al2023-v1"
MISTAKES = {
    "create": "create needs an instance type: add --instance TYPE, such as ",
    f"create --instance p9.8xlarge {FROM_IT}": "unknown instance 'ml.p9.8xlarge'",
    f"create --instance p5.48xlarge {FROM_IT}": "its GPUs are H100 or H200 (sm_90), which mxnet-cu",
    f"{G5} --subnet subnet-1 {6 * '--security-group sg-1 '}": "at most 5",
    f"create --instance p2.xlarge {FROM_IT}": "notebook-al2023-v1 cannot run on ml.p2.xlarge",
    "create --instance g5.12xlarge": "add --repository https://... or --bucket NAME",
    f"{G5} --platform notebook-al1-v1": "AWS ended support for notebook-al1-v1 on 2024-03-31",
    f"create --instance p3.2xlarge --platform notebook-al2023-v2 {FROM_IT}": (
        "notebook-al2023-v2 cannot run on ml.p3.2xlarge"
    ),
    f"create --instance p3.2xlarge {FROM_IT}": "choose --instance ml.g5.xlarge",
    f"create --instance p3.8xlarge {FROM_IT}": "AWS ended support for notebook-al2-v3 on 2026-07-01",
    f"create --instance p3.16xlarge {FROM_IT}": "choose --instance ml.g5.48xlarge",
    f"create --instance p3.2xlarge {AL2023} {FROM_IT}": ("cannot run on ml.p3.2xlarge (as of 2026-11-27)"),
    f"{G5} {AL2}": "AWS ended support for notebook-al2-v2 on 2026-07-01",
    f"{G5} --platform al2023": "unknown platform 'al2023'",
    f"{G5} --name x_y": "--name 'x_y' is not a valid name for AWS",
    f"{G5} --subnet subnet-1": "--subnet subnet-1 needs security groups",
    f"{G5} --security-group sg-1": "--security-group sg-1 needs a subnet",
    f"{G5} --owner a;b": "--owner 'a;b'",
    f"{G5} --volume 4": "--volume",
    "resize --volume 4": "--volume",
    "resize": "add --instance TYPE, --volume GB or --platform PLATFORM",
    "resize --instance p9.8xlarge": "unknown instance 'ml.p9.8xlarge'",
    "resize --platform al2023": "unknown platform 'al2023'",
    "quota": "quota needs an instance type: add --instance TYPE, such as ml.g4dn.xlarge",
    "quota --instance g5.xlarge --request 0": "--request",
    "quota --instance g5.xlarge --use trainin": "--use",
    "url --hours 13": "--hours",
    "status --nmae x": "did you mean '--name'?",
    "stauts": "did you mean 'status'?",
    "jobs sumbit": "did you mean 'submit'?",
    "jobs submit": "submit needs a bucket: add --bucket NAME",
    "jobs submit --bucket my-bucket": "submit needs a role: add --role ROLE",
    f"{SUBMIT} --template one": "unknown template 'one'",
    f"{SUBMIT} --checkpoints gluonlab-y": "one-host does not write checkpoints",
    f"{SUBMIT} --template spot --set out=/tmp/run": "must be below /opt/ml",
    f"{SUBMIT} --template spot --set autoresume=false": "must resume when AWS restarts it",
    f"{SUBMIT} --volume 70": "ml.g5.12xlarge has a local disk",
    f"{SUBMIT} --template spot --checkpoints a/b": "--checkpoints 'a/b'",
    f"{SUBMIT} --name mine": "--name mine: start the name with gluonlab-",
    f"{SUBMIT} --set epochs": "--set epochs: use NAME=VALUE",
    f"{SUBMIT} --set sagemaker_program=x": "the template sets the sagemaker_... parameters",
    f"{SUBMIT} --instance g5.13xlarge": "unknown instance 'ml.g5.13xlarge'",
    "jobs stop": "the job's name is missing: add --name NAME",
    "jobs wait --name a_b": "--name 'a_b' is not a valid name for AWS",
    "jobs role": "role needs a bucket: add --bucket NAME",
    "jobs role --bucket s3://x": "--bucket s3://x is not a bucket name",
    "jobs policy --instance g5.xlarge": "policy needs a bucket",
    "jobs policy --bucket b-b": "policy needs instance types: add --instance TYPE",
    "jobs policy --bucket b-b --instance g5.13xlarge": "unknown instance 'ml.g5.13xlarge'",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_called(words, capsys, log, credentials):
    """A call would fail, because the tests have no network."""
    status, out, err = run_command(capsys, Dependencies(log.recording()), words.split())
    assert (status, out, log.calls) == (2, "", [])
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert MISTAKES[words] in line


CAPABILITIES = {
    "p2": (3, 7), "p3": (7, 0), "p3dn": (7, 0), "g4dn": (7, 5), "p4d": (8, 0), "p4de": (8, 0),
    "g5": (8, 6), "g6": (8, 9), "g6e": (8, 9), "p5": (9, 0), "p5e": (9, 0), "p5en": (9, 0),
    "p6-b200": (10, 0), "p6-b300": (10, 3), "p6e-gb200": (10, 0), "g7": (12, 0), "g7e": (12, 0),
}  # fmt: skip


def test_a_machine_is_unfit_exactly_when_the_doctor_would_say_so_of_its_gpus():
    """Every family of GPUs that the API knows."""
    from gluonlab.gpu.cuda import is_supported

    both = ("InstanceType", "TrainingInstanceType")
    types = {name for shape in both for name in SHAPES.shape_for(shape).enum}
    assert {name.split(".")[1] for name in types if name[3] in "gp"} == set(CAPABILITIES)
    for name in types:
        able = is_supported(CAPABILITIES.get(name.split(".")[1], (8, 0)))
        assert able is not bool(instances.pairs.unfit_reason(name)), name


def test_a_platform_that_only_aws_knows_is_left_to_aws_with_a_warning():
    assert instances.check_platform("notebook-al2026-v1") == "notebook-al2026-v1"
    assert instances.refuse_dead_instance("ml.g5.12xlarge", "notebook-al2026-v1", force=False) is None
    assert instances.unknown_platform_warning("notebook-al2026-v1").startswith(
        "notebook-al2026-v1 is not a known platform (as of 2026-11-27)"
    )


def test_every_platform_of_the_api_is_known_and_dated():
    pattern = SHAPES.shape_for("PlatformIdentifier").metadata["pattern"]
    assert set(pattern.strip("()").split("|")) == set(instances.pairs.load_platforms())
    for name, about in instances.pairs.load_platforms().items():
        assert instances.unknown_platform_warning(name) == ""
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", about["as_of"])
        assert (about["dead_since"] is None) == name.startswith("notebook-al2023-")


def test_the_way_out_of_a_dead_pair_is_a_living_one():
    for platform, about in instances.pairs.load_platforms().items():
        for instance in instances.pairs.load_instances():
            options = instances.resize_options(instance, platform).split()
            given = dict(zip(options[::2], options[1::2]))
            after = given.get("--instance", instance), given.get("--platform", platform)
            if platform == "notebook-al1-v1":
                assert (options, about["becomes"]) == ([], None)
            else:
                assert instances.pairs.dead_reason(*after) == ""


def test_every_instance_is_a_choice_and_has_a_request_of_its_own(capsys, credentials):
    status, out, _ = run_command(capsys, Dependencies(), ("create", "--instance", "list"))
    assert status == 0
    for line in out.splitlines():
        name = line.split()[0]
        assert instances.notebook_request(name)["InstanceType"] == name
        assert ("dead as of 2026-11-21" in line) == name.startswith("ml.p3")
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:2] == ["ml.m5.xlarge", "ml.g4dn.xlarge"] and names[-1].startswith("ml.p3")  # the living first


def test_the_list_of_machines_says_what_each_costs_an_hour(capsys, credentials):
    out, err = run_command(capsys, Dependencies(), ("create", "--instance", "list"))[1:]
    message = {line.split()[0]: line for line in out.splitlines()}
    assert "1.41 USD per hour" in message["ml.g5.xlarge"] and "0.23 USD per hour" in message["ml.m5.xlarge"]
    assert "price unknown" in message["ml.g4dn.12xlarge"]
    assert "prices: USD, as of" in err


def test_without_a_region_no_price_is_looked_for_and_nothing_is_made(capsys, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    out = run_command(capsys, Dependencies(), ("create", "--instance", "list"))[1]
    assert all("price: add --region" in line for line in out.splitlines())
    made = ("create", "--instance", "g5.xlarge", "--repository", "https://x/y")
    message = "error: create needs a region: add --region REGION, such as us-east-1\n"
    assert run_command(capsys, Dependencies(), made) == (2, "", message)
    err = run_command(capsys, Dependencies(), (*made, "--dry-run"))[2]
    assert "cost: the price depends on the region: add --region REGION, such as us-east-1; 50 GB" in err
    assert "<region>" not in err
    assert "by region: add --region" in run_command(capsys, Dependencies(), ("create", "--instance", "list"))[2]


def test_a_notebook_from_nowhere_is_refused_before_its_price_is_named(capsys, credentials):
    err = run_command(capsys, Dependencies(), ("create", "--instance", "g5.xlarge"))[2]
    assert err.startswith("error: the notebook needs a source for gluonlab")


@pytest.fixture
def prices(tmp_path):
    """``prices(instance_hour, volume_gb_month)``: a table for us-east-1."""

    def write(hour, month=None):
        path = tmp_path / "prices.json"
        here = {"instance_hour": {"ml.x": hour}, "volume_gb_month": month}
        here.update(date="2020-02-02", currency="EUR", training_hour={"ml.x": hour})
        path.write_text(json.dumps({"regions": {"us-east-1": here}}))
        return Prices(path)

    return write


def test_costs_are_products_and_say_where_they_come_from(prices):
    table = prices(2.5, 0.2)
    assert table.describe_notebook_cost("ml.x", 50, "us-east-1") == (
        "cost: about 2.50 EUR per hour while it runs, 60.00 per day if nothing stops it; 50 GB of volume cost money "
        "until you delete the notebook, even if it is stopped, about 10.00 EUR per month (estimated from the prices "
        "of 2020-02-02 in prices.json)"
    )
    assert "about 7.50 EUR per hour on 3 x ml.x, at most 15.00 EUR in 2 h" in table.describe_job_cost(
        "ml.x", 3, 7200, "us-east-1"
    )


def test_what_is_not_known_is_said_not_guessed(prices):
    missing = (None, "ml.x", "us-east-1"), (1, "ml.y", "us-east-1"), (1, "ml.x", "eu-west-1")
    for price, instance, region in missing:
        table = prices(price)
        text = table.describe_notebook_cost(instance, 50, region)
        assert f"prices.json does not contain a price for {instance} in {region}" in text
        assert f"launch.py prices --update --region {region} to ask AWS" in text
        assert "estimate" not in text
        job = table.describe_job_cost(instance, 1, 60, region)
        assert f"prices.json does not contain a price for training on {instance} in {region}" in job
        assert "prices --update" in job


@pytest.mark.parametrize("wrong", ["3.5", True, -1, float("inf"), [1]])
def test_a_price_that_is_none_is_refused(wrong, prices):
    with pytest.raises(RefusedError, match="is not a price: write a number, or null"):
        prices(wrong).describe_notebook_cost("ml.x", 50, "us-east-1")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"regions": 1}', None])
def test_a_table_that_is_none_is_refused(text, tmp_path):
    if text is not None:
        (tmp_path / "prices.json").write_text(text)
    with pytest.raises(RefusedError, match="fix the file"):
        Prices(tmp_path / "prices.json")


def test_the_table_that_is_shipped_says_of_when_and_from_where_it_is():
    shipped = json.loads((SAGEMAKER / "prices.json").read_text())
    for region in shipped["regions"].values():
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", region["date"])
        assert "not from AWS" in region["source"] or region["source"].startswith("AWS's price list")
        assert set(instances.pairs.load_instances()) <= set(region["instance_hour"])


def git(folder, *arguments):
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_archive_holds_the_last_commit_at_its_top(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "setup.py").write_text("committed")
    (tmp_path / "sub" / "a").write_text("a")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "x")
    (tmp_path / "setup.py").write_text("changed")
    (tmp_path / "secrets").write_text("never added")
    message = []
    with tarfile.open(fileobj=BytesIO(create_archive(tmp_path, message.append))) as tar:
        members = [item for item in tar.getmembers() if item.isfile()]
        files = {item.name: tar.extractfile(item).read().decode() for item in members}
    assert files == {"setup.py": "committed", "sub/a": "a"}
    assert message == ["warning: changes that are not committed are not uploaded: setup.py"]


def test_without_a_git_checkout_there_is_no_archive(tmp_path):
    message = "is not a git checkout that can be uploaded .* or add --repository"
    with pytest.raises(RefusedError, match=message):
        create_archive(tmp_path)


def test_the_modules_import_downwards_only():
    """The docstring of gluonlab_sagemaker lists each module once, in order."""
    import gluonlab_sagemaker

    rows = [re.split(r"  +", line)[0] for line in gluonlab_sagemaker.__doc__.splitlines()[4:]]
    order = [name for row in rows for name in row.split()]
    files = {path.stem: path for path in (SAGEMAKER / "gluonlab_sagemaker").glob("[a-z]*.py")}
    assert sorted(order) == sorted(files)
    for place, name in enumerate(order):
        text = files[name].read_text(encoding="utf-8")
        used = re.findall(r"^ *from gluonlab_sagemaker\.(\w+) import", text, re.M)
        for names in re.findall(r"^ *from gluonlab_sagemaker import (.*)$", text, re.M):
            used += [item.strip() for item in names.split(",")]
        assert set(used) <= set(order[place + 1 :]), name


def test_launch_py_needs_neither_mxnet_nor_an_installed_gluonlab(tmp_path):
    """The file itself, from another folder, with only boto3 and click to be found."""
    forbid = (
        "import sys, runpy\nclass Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('mxnet', 'numpy', 'matplotlib', 'tqdm', 'sklearn', "
        "'yaml', 'sagemaker'):\n            raise AssertionError(name)\n"
        "sys.meta_path.insert(0, Finder())\nsys.argv = ['launch.py', 'status', '--dry-run']\n"
        f"runpy.run_path({str(SAGEMAKER / 'launch.py')!r}, run_name='__main__')\n"
    )
    process = subprocess.run([sys.executable, "-c", forbid], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (0, "")
    assert json.loads(process.stdout)[0]["operation"] == "DescribeNotebookInstance"
    assert list(tmp_path.iterdir()) == []
