"""`stepwell bench index` measures what it says, and judges each budget."""

import json

from click.testing import CliRunner

from stepwell.bench.index import BUDGETS, command


def test_a_quick_look_reports_every_figure_and_verdict():
    result = CliRunner().invoke(command, ["--json", "--quick"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    for nodes in ("16", "256"):
        row = told["match_us"][nodes]
        assert set(row) == {"1", "2", "3"} and all(0 < took < 1e6 for took in row.values())
        assert told["floor_us"][nodes] > 0
        for rows in ("interior", "half", "none"):
            gone = told["tombstoned_us"][nodes][rows]
            assert set(gone) == {"1", "2", "3"} and all(0 < took < 1e6 for took in gone.values())
            assert set(told["tombstoned_ratios"][nodes][rows]) == {"2", "3"}
    assert told["publish_ns_per_page"] != 0 and told["evict_ns_per_page"] > 0
    assert set(told["budgets"]) == set(BUDGETS)
    for verdict in told["budgets"].values():
        assert verdict["met"] == (verdict["reached"] <= verdict["budget"])
