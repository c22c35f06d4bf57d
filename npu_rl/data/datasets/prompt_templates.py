r"""Prompt templates: the chat for a problem, and the answer format that it requests.

The three are upstream's, word by word: `boxed` and `hashes` of verl's examples/data_preprocess (math_dataset.py,
gsm8k.py @55e3c5b), `r1-zero` of recipe/r1_ascend/json_to_parquet.py @448c6c3, where `\\boxed{}` has two backslashes by
mistake, and one here.
"""

from __future__ import annotations

from dataclasses import dataclass

BOXED, HASHES, ANSWER = r"\boxed{}", "####", "Answer:"
FORMS = (BOXED, HASHES, ANSWER)

_R1_ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
    "The assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
    "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
    "respectively, i.e., <think> reasoning process here </think><answer> answer here </answer>. "
    r"Put your final answer within \boxed{}. "
)


@dataclass(frozen=True)
class Template:
    """A prompt template.

    Attributes:
        asks_for: The form of the final answer that the prompt asks for; "" for none.
        system: Text of the system message; "" for none.
        suffix: The text after the problem in the user's message.
    """

    name: str
    asks_for: str
    summary: str
    system: str = ""
    suffix: str = ""

    def chat(self, question: str) -> list[dict[str, str]]:
        """Return the messages of one prompt."""
        user = {"role": "user", "content": question + self.suffix}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]


TEMPLATES = {
    one.name: one
    for one in (
        Template(
            "boxed",
            BOXED,
            r"the problem, then: think step by step, final answer within \boxed{}",
            suffix=r" Let's think step by step and output the final answer within \boxed{}.",
        ),
        Template(
            "r1-zero",
            BOXED,
            r"DeepSeek-R1-Zero's system message: <think>, <answer>, final answer within \boxed{}",
            system=_R1_ZERO,
        ),
        Template(
            "hashes",
            HASHES,
            'the problem, then: think step by step, final answer after "####"',
            suffix=' Let\'s think step by step and output the final answer after "####".',
        ),
        Template("plain", "", "the problem alone"),
    )
}


def asked_for(text: str) -> tuple[str, ...]:
    """Return the forms of answer that a prompt's text names."""
    boxed = r"\boxed" in text and r"\\boxed" not in text
    return tuple(form for form in FORMS if (boxed if form == BOXED else form in text))
