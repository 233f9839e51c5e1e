"""Pages of the evidence in Markdown: marks, and the tables that follow them."""

import pytest
from evidence_runs import HEART, runs_of

from pogm._system.errors import UsageError
from pogm.evidence.pages import new_section, update_tables
from pogm.evidence.sweeps import SWEEPS


def test_marked_table_of_a_page_is_computed_again_and_the_text_stays():
    heart = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    complete = {heart: runs_of(HEART, {"ERM": 0.0, "Fish": 0.01})}
    mark = "<!-- records: domains, heart_disease, training-domain -->"
    page = f"Text\n\n{mark}\n\n| old |\n|---|\n| 1 |\n\nMore text\n"
    updated = update_tables(page, complete)
    assert updated.startswith(f"Text\n\n{mark}\n\n| | cleveland |")
    assert updated.endswith("|\n\nMore text\n")
    assert "| Fish | 73.2 ± 0.7 |" in updated
    assert update_tables(updated, complete) == updated
    with pytest.raises(UsageError, match="found none"):
        update_tables(page, {})
    with pytest.raises(UsageError, match="heart_disease"):
        update_tables(page.replace("heart_disease", "hart_disease"), complete)


def test_new_section_of_a_sweep_has_all_tables_and_is_up_to_date():
    heart = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    runs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.01})
    text = new_section(heart, runs)
    assert "mlp, 201 minibatches, fp32" in text
    assert "| Fish | 73.2 ± 0.7 | +1.20 ± 0.07 | +0.6 … +1.8 ≠ | 0.7 |" in text
    assert text.count("<!-- records: ") == 4
    assert text.count("| Fish |") == 4
    assert update_tables(text, {heart: runs}) == text


def test_findings_of_a_scale_have_a_line_for_each_dataset():
    heart = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    runs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.01, "CORAL": -0.01})
    text = update_tables("<!-- records: findings, small -->\n", {heart: runs})
    assert "| HeartDisease | 72.0 ± 0.6 | – | Fish | +1.20 ± 0.07 | +0.6 … +1.8 ≠ | 1 | 0 | 1 |" in text
