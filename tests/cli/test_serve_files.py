"""The demonstration can be served."""

import os


def test_the_demonstration_can_be_served(command, monkeypatch, tmp_path):
    made, served = [], []
    monkeypatch.setattr("embmap.demo.tour.tour", lambda console, folder: made.append(folder))
    monkeypatch.setattr(
        "embmap.cli.demo_tour.serve", lambda files, **options: served.append((files, options))
    )
    assert "--serve" in command("demo", "--folder", tmp_path)[1]
    assert (made, served) == ([tmp_path], [])
    assert command("demo", "--folder", tmp_path, "--serve", "--port", "0")[0] == 0
    ((files, options),) = served
    assert [os.path.dirname(file) for file in files] == [str(tmp_path)] * 2
    assert options["port"] == 0
    assert command("demo", "--serve")[0] == 0
    assert not made[-1].exists()  # a temporary folder, gone once serving ends
