"""Faults in noisewise.models that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # data and models
    Mutant(
        "data: every seed starts alike",
        "models/__init__.py",
        "torch.default_generator.manual_seed(seed)",
        "torch.default_generator.manual_seed(0)",
        ("models/test_models.py::test_the_seed_is_the_initialisation_and_the_global_state_is_left_alone[mlp]",),
    ),
    Mutant(
        "models: standardised weights keep their mean",
        "models/residual.py",
        "centred = rows - rows.mean(1, keepdim=True)",
        "centred = rows",
        ("models/test_models.py::test_standardized_weights_are_those_of_batch_norm_over_the_weights",),
    ),
    Mutant(
        "models: weights without spread are divided by nothing",
        "models/residual.py",
        ".clamp(min=SMALLEST_SPREAD).rsqrt()",
        ".rsqrt()",
        ("models/test_models.py::test_standardized_weights_are_those_of_batch_norm_over_the_weights",),
    ),
    Mutant(
        "encoder: padding is looked at",
        "models/encoder.py",
        "token = (x != PADDING) | (places == 0)",
        "token = x >= PADDING",
        ("models/test_encoder.py::test_what_the_head_sees_is_hugging_faces_pooled_output",),
    ),
    Mutant(
        "encoder: the separator belongs to the second text",
        "models/encoder.py",
        "kinds = (ends.cumsum(1) - ends).clamp(max=1)",
        "kinds = ends.cumsum(1).clamp(max=1)",
        ("models/test_encoder.py::test_what_the_head_sees_is_hugging_faces_pooled_output",),
    ),
    # options of the command line
    Mutant(
        "fresh: converted layers are in training mode",
        "models/convert.py",
        "return new.train(old.training)",
        "return new",
        ("models/test_convert.py::test_names_values_and_settings_are_kept",),
    ),
    Mutant(
        "fresh: converted layers forget eps",
        "models/convert.py",
        "eps=old.eps, ",
        "",
        ("models/test_convert.py::test_names_values_and_settings_are_kept",),
    ),
    Mutant(
        "fresh: 16 channels to a group are too few",
        "models/convert.py",
        "old.num_features // d >= LEAST",
        "old.num_features // d > LEAST",
        ("models/test_convert.py::test_groups_divide_the_channels",),
    ),
    Mutant(
        "fresh: models: attention without its heads",
        "models/transformer.py",
        "self.qkv(x).reshape(units, tokens, 3, self.heads, -1)",
        "self.qkv(x).reshape(units, tokens, 3, 1, -1)",
        ("models/test_models.py::test_a_transformer_block_is_pytorchs_encoder_layer",),
    ),
    Mutant(
        "fresh: models: a shortcut without its stride",
        "models/residual.py",
        "nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after))",
        "nn.Sequential(nn.AvgPool2d(stride), nn.Conv2d(before, after, 1, bias=False), _norm(after))",
        ("models/test_models.py::test_residual_networks_are_hugging_faces_with_group_norm",),
    ),
    Mutant(
        "fresh: models: closed-form norms without the inner product",
        "models/theory.py",
        "+ 2 * both * inner.unsqueeze(1)",
        "+ 0 * both * inner.unsqueeze(1)",
        ("models/test_models.py::test_gradient_norms_have_a_closed_form",),
    ),
    Mutant(
        "fresh: models: deviations divide by the mean's square",
        "models/convolutional.py",
        "return (x - self.mean) / self.std",
        "return (x - self.mean) / self.std.sqrt()",
        ("models/test_models.py::test_scattering_features_are_normalised_by_unit_or_by_constants",),
    ),
    Mutant(
        "heads: a unit's answer is that of its first view",
        "models/heads.py",
        "return each.log_softmax(2).logsumexp(1) - math.log(self.views)",
        "return each[:, 0].log_softmax(1)",
        ("workflow/test_image_prediction.py::test_predictions_are_the_models_in_their_places",),
    ),
]
