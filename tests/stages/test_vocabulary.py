"""Whether models can be compared at all."""

import pytest

from schemas.errors import InputError
from stages.vocabulary import assert_plain_lm_head, assert_same_vocabulary

STUDENT = {0: "<pad>", 1: "he", 2: "llo"}


def test_the_first_id_that_differs_is_named():
    with pytest.raises(InputError, match="teacher 'math': token id 1 is 'hel', to the student it is 'he'"):
        assert_same_vocabulary(STUDENT, {0: "<pad>", 1: "hel", 2: "lo"}, "math")


def test_an_id_only_one_of_them_has_is_a_difference():
    with pytest.raises(InputError, match="token id 3 is '!', to the student it is no token"):
        assert_same_vocabulary(STUDENT, STUDENT | {3: "!"}, "math")


def test_equal_maps_pass_in_any_order():
    assert_same_vocabulary(STUDENT, dict(reversed(STUDENT.items())), "math")


@pytest.mark.parametrize(
    "setting", [{"final_logit_softcapping": 30.0}, {"logits_scaling": 8.0}, {"logit_scale": 0.0625}]
)
def test_models_that_change_logits_after_the_head_are_refused(setting):
    with pytest.raises(InputError, match=f"{next(iter(setting))} is .*use another model"):
        assert_plain_lm_head({"vocab_size": 3, **setting}, "gemma")


def test_neutral_settings_pass():
    assert_plain_lm_head({"final_logit_softcapping": None, "logits_scaling": 1.0}, "qwen")
