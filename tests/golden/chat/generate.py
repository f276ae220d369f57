"""Writes ``goldens.json``: chat templates rendered by ``transformers``, which the front end's renderer must equal.

Run ``python tests/golden/chat/generate.py`` after changing a template or a case here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
SPECIAL_TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}

PLAIN = [{"role": "user", "content": "What is the capital of France?"}]
TURNS = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!\n"},
    {"role": "user", "content": "  Bye  "},
]
MARKUP = [
    {"role": "system", "content": "<b>&amp;</b> 'single' \"double\" {{ not }} {% code %}"},
    {"role": "user", "content": "a < b && c > 'd' \\n \u2028 </s>"},
]
UNICODE = [
    {"role": "user", "content": "👩‍👩‍👧‍👦 🇯🇵 龘𠮷 שלום e\u0301 \u00a0"},
    {"role": "assistant", "content": "Ünïcödé ✓"},
    {"role": "user", "content": "ı İ"},
]
THOUGHT = [
    {"role": "user", "content": "17*23?"},
    {"role": "assistant", "content": "<think>\n17*20=340\n</think>\n\n391"},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes", "reasoning_content": "\nI checked.\n"},
]
ARGUMENTS = {"text": "He said \"ok\" <&> 'x'", "n": 3, "ratio": 1.5, "deep": {"z": [1, None, True], "a": "é"}, "no": []}
CALLS = [
    {"role": "user", "content": "Save a note."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "save_note", "arguments": ARGUMENTS}}],
    },
    {"role": "tool", "content": "saved <1>", "tool_call_id": "c1"},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "save_note",
            "description": "Saves a note & says 'done' <now>. 日本",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "n": {"type": "integer", "default": 1}},
                "required": ["text"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "parameters": {}}},
]
VALUE = {"b": 1, "a": [True, None, 1.0, -2.5e-9, "it's"], "ü": {"x": "\u007f\u0001/<>&", "e": {}}, "big": 1e22}
NAMED = [
    {"role": "system", "content": "skip"},
    {"role": "user", "content": "Where are apples?", "name": "ann"},
    {"role": "assistant", "content": "  here \n"},
    *({"role": "user", "content": f"What a question {i}"} for i in range(6)),
]

#: template, name of the case, messages, add_generation_prompt, variables
CASES: list[tuple[str, str, list[dict[str, Any]], bool, dict[str, Any]]] = [
    *(
        (template, name, messages, prompt, {"date_string": "26 Jul 2024"})
        for template in ("smollm2", "qwen3_5_style", "llama3_style")
        for name, messages in (("plain", PLAIN), ("turns", TURNS), ("markup", MARKUP), ("unicode", UNICODE))
        for prompt in (True, False)
    ),
    ("qwen3_5_style", "thinking on", PLAIN, True, {"enable_thinking": True}),
    ("qwen3_5_style", "thinking off", PLAIN, True, {"enable_thinking": False}),
    ("qwen3_5_style", "thought before", THOUGHT, True, {}),
    ("qwen3_5_style", "thought last", THOUGHT, False, {}),
    ("qwen3_5_style", "tool calls", CALLS, True, {}),
    ("qwen3_5_style", "tools", [*TURNS[:2]], True, {"tools": TOOLS}),
    ("qwen3_5_style", "tools and calls", CALLS, True, {"tools": TOOLS}),
    ("qwen3_5_style", "late system", [*PLAIN, TURNS[0]], True, {}),
    ("qwen3_5_style", "unknown role", [{"role": "critic", "content": "no"}], True, {}),
    ("llama3_style", "tools", TURNS, True, {"tools": TOOLS, "date_string": "26 Jul 2024"}),
    ("llama3_style", "tool calls", CALLS, True, {"date_string": "26 Jul 2024"}),
    (
        "llama3_style",
        "two calls",
        [PLAIN[0], {**CALLS[1], "tool_calls": CALLS[1]["tool_calls"] * 2}],
        True,
        {"date_string": "26 Jul 2024"},
    ),
    ("python_style", "everything", NAMED, True, {"value": VALUE}),
    ("python_style", "short", TURNS, True, {"value": {"k": "<'&'>"}}),
    ("python_style", "unicode", UNICODE, True, {"value": {"日本": "𠮷", "q": "\"'"}}),
]


def render(template: str, messages: list[dict[str, Any]], prompt: bool, variables: dict[str, Any]) -> dict[str, str]:
    """The rendered text, or the message with which the template refuses."""
    variables = dict(variables)
    tools = variables.pop("tools", None)
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=(HERE / f"{template}.jinja").read_text(encoding="utf-8"),
            add_generation_prompt=prompt,
            **SPECIAL_TOKENS,
            **variables,
        )
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}
    return {"text": rendered[0]}


def main() -> None:
    goldens = [
        {
            "template": template,
            "case": name,
            "messages": messages,
            "add_generation_prompt": prompt,
            "variables": variables,
            "expected": render(template, messages, prompt, variables),
        }
        for template, name, messages, prompt, variables in CASES
    ]
    text = json.dumps({"special_tokens": SPECIAL_TOKENS, "goldens": goldens}, ensure_ascii=False, indent=1)
    (HERE / "goldens.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
