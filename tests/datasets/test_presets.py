"""What a dataset offers by name is what the tasks use, so that `longspan data` prepares what `longspan run` reads."""

import pytest

from longspan import datasets, tasks
from longspan.core.errors import UnknownName


@pytest.mark.parametrize("name", tasks.names())
def test_a_task_reads_the_presets_of_its_dataset(name):
    task = tasks.get(name)
    presets = datasets.get(task.dataset).presets[name]
    assert {key: protocol.data for key, protocol in task.protocols.items()} == presets


@pytest.mark.parametrize("name", datasets.names())
def test_every_preset_belongs_to_a_task(name):
    presets = datasets.get(name).presets
    assert presets
    assert {tasks.get(task).dataset for task in presets} == {name}


def test_a_preset_is_that_of_the_first_task_that_has_it():
    imdb = datasets.get("imdb")
    assert imdb.preset("lra-released", "full") == imdb.presets["text"]["lra-released", "full"]
    assert imdb.preset("lra-released", "full").length == 1_000


@pytest.mark.parametrize(
    "protocol, tier, sentence",
    [
        ("longspam", "full", "listops has no protocol 'longspam'. Did you mean 'longspan'?"),
        ("longspan", "smok", "listops under longspan has no tier 'smok'. Did you mean 'smoke'?"),
    ],
)
def test_an_unknown_preset_is_one_sentence(protocol, tier, sentence):
    with pytest.raises(UnknownName) as error:
        datasets.get("listops").preset(protocol, tier)
    assert str(error.value) == sentence


def test_every_setting_is_listed_once_with_all_that_use_it():
    found = list(datasets.uses("pathfinder"))
    assert len({use.data for use in found}) == len(found) == 4
    assert found[0].users == ("longspan/smoke", "strong/smoke", "pathfinder_cls longspan/smoke")
    assert found[2].users == ("pathx longspan/smoke", "pathx strong/smoke")


def test_examples_are_found_by_dataset_and_by_task():
    pathfinder = datasets.get("pathfinder")
    assert datasets.examples_of("pathfinder")[1] == pathfinder.Data()
    dataset, data = datasets.examples_of("pathx")
    assert dataset.name == "pathfinder"
    assert data == pathfinder.presets["pathx"]["longspan", "full"]
    with pytest.raises(UnknownName, match="No dataset named 'softmax'"):
        datasets.examples_of("softmax")
