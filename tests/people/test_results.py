"""Results of a campaign: tables, pictures, and a page that shows the iterates."""

import json

from leapfactual.people import results

from .crowd import invited, labels, play


def test_results_are_tables_pictures_and_a_page(campaign, network, tmp_path):
    made = campaign()
    play(made.db, {person: labels(network) for person in invited(made.db, 2)})
    count = results.write_results(made.db, tmp_path / "out")
    table = json.loads((tmp_path / "out" / "results.json").read_text())
    assert count == len(table) == 6
    assert len(list((tmp_path / "out" / "pictures").glob("*.png"))) == 12
    page = (tmp_path / "out" / "index.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["asked"] == "people"
    assert max(card["frames"]["n"] for card in data["cards"]) > 2, "the way, not only its ends"
    for card, row in zip(data["cards"], table, strict=True):
        assert card["name"] == row["picture"]
