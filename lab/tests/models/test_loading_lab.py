"""Loading by name: a model from a folder, its dtype, and what is said when the embedded one is missing."""

import pathlib

import pytest

from everlong.models import loading as models
from everlong_lab.eval import niah, ppl, suite
from everlong_lab.eval.answers import AnswerFile


def test_what_goes_on_is_loaded_by_name_in_the_dtype_that_it_began_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LoadedError(Exception):
        pass

    def load(name: str, dtype: str | None = None) -> None:
        raise LoadedError(dtype)

    monkeypatch.setattr(models, "load", load)
    runs = {
        niah.READ_AS: lambda: niah.run_niah("tiny", keep=tmp_path),
        ppl.FILE: lambda: ppl.run_ppl("tiny", out=tmp_path),
        suite.FILE: lambda: suite.run_suite("tiny", out=tmp_path),
    }
    for file, run in runs.items():
        for began in (None, "bfloat16"):
            if began is not None:
                AnswerFile(tmp_path / file, {"dtype": began})
            with pytest.raises(LoadedError) as loaded:
                run()
            assert loaded.value.args == (began,)
    with pytest.raises(LoadedError) as loaded:
        niah.run_niah("tiny")
    assert loaded.value.args == (None,)
