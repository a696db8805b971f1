"""What `branch-points` is for: `stepwell bench branches`, with a window pool of 1.5% of the full pool's pages."""

import json

import pytest
from click.testing import CliRunner

from stepwell.bench.branches import command


@pytest.fixture(scope="module")
def rows():
    policies = [part for name in ("tail", "branch-points") for part in ("--policy", name)]
    ran = CliRunner().invoke(command, ["--window", "128", *policies, "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.output)
    assert told["share"] == 0.015
    return {row["policy"]: row for row in told["rows"]}


def test_at_known_points_nine_tenths_of_the_hits_of_full_attention_remain(rows):
    assert rows["branch-points"]["known"] >= 0.9


def test_it_keeps_more_than_tail_where_paths_part_and_no_less_of_all(rows):
    for kind in ("known", "fresh", "all"):
        assert rows["branch-points"][kind] > rows["tail"][kind], kind
