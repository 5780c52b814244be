"""Faults in noisewise.recipes that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "recipes: scales that were found on larger images are taken for small ones",
        "recipes/settings.py",
        "if 2 * 2**scale <= min(shape[1:]))",
        "if True)",
        ("workflow/test_recipe_specs.py::test_what_was_found_on_larger_images_is_made_to_fit",),
    ),
    Mutant(
        "recipes: what was found on larger images is taken as it is by the library",
        "recipes/own_images.py",
        "usual = {**fitting(course, parts.train.x.shape[1:]), **given}",
        "usual = given",
        ("recipes/test_centre.py::test_a_recipe_pays_for_its_centre_and_its_model_has_it",),
    ),
    Mutant(
        "centre: a long row counts in full",
        "recipes/centre.py",
        "rows * (LENGTH / lengths.clamp(min=LENGTH))",
        "rows",
        ("recipes/test_centre.py::test_one_unit_moves_the_sum_by_at_most_the_length_of_a_row",),
    ),
    Mutant(
        "centre: a run that goes on releases another one",
        "recipes/centre.py",
        "if not path.exists():",
        "if True:",
        ("recipes/test_centre.py::test_it_happens_once_in_a_run_and_the_folder_holds_together",),
    ),
    Mutant(
        "recipes: rows are centred by the mean of all of them",
        "recipes/transform.py",
        "numbers = numbers - numbers.mean(1, keepdim=True)",
        "numbers = numbers - numbers.mean()",
        ("recipes/test_transform.py::test_one_image_less_or_another_changes_no_other_row",),
    ),
    Mutant(
        "recipes: channels are scaled by the records themselves",
        "recipes/scattered.py",
        "part = part.sub_(mean).div_(deviation)",
        "part = (part - part.mean((0, 2, 3), keepdim=True)) / part.std((0, 2, 3), keepdim=True)",
        ("recipes/test_scattered.py::test_a_row_is_a_function_of_its_own_image",),
    ),
    Mutant(
        "recipes: features of private images are written to the cache",
        "recipes/transform.py",
        "if slow and data.public else made()",
        "if slow else made()",
        ("recipes/test_transform.py::test_features_of_private_images_are_written_nowhere",),
    ),
    Mutant(
        "recipes: features are known by their settings alone",
        "recipes/transform.py",
        "hashlib.sha256(settings.encode() + digest(data.x))",
        "hashlib.sha256(settings.encode())",
        ("recipes/test_transform.py::test_marks_are_those_of_the_images_and_settings",),
    ),
    Mutant(
        "recipes: the rate does not fall with the signal",
        "recipes/settings.py",
        "min(1.0, n * epsilon / (self.n * self.epsilon))",
        "1.0",
        ("recipes/test_settings.py::test_a_weaker_signal_has_a_lower_rate_in_proportion",),
    ),
    Mutant(
        "recipes: likeness to a patch counts how bright an image is",
        "recipes/patches.py",
        "level = kernels - kernels.mean(1, keepdim=True)",
        "level = kernels",
        ("recipes/test_patches.py::test_likeness_is_the_product_of_standard_patches_written_out",),
    ),
    Mutant(
        "recipes: likeness is scaled by the records themselves",
        "recipes/patches.py",
        "made = (_alike(images, *look) - mean) / deviation",
        "made = (made := _alike(images, *look)).sub(made.mean((0, 2, 3), keepdim=True)) / deviation",
        ("recipes/test_patches.py::test_features_are_made_row_by_row",),
    ),
    Mutant(
        "recipes: learned channels are not pulled apart",
        "recipes/learned.py",
        'made.append(torch.einsum("kc,nchw->nkhw", pulling.to(part), part) if self.whiten else part)',
        "made.append(part)",
        ("recipes/test_pretraining.py::test_channels_are_pulled_apart_as_on_the_images_it_learned_on",),
    ),
    Mutant(
        "recipes: an encoder of other weights is taken",
        "recipes/learned.py",
        "if self.digest and self.digest != digest:",
        "if False:",
        ("recipes/test_pretraining.py::test_other_weights_than_those_trained_with_are_refused",),
    ),
]
