"""Tokenizers with chat templates in each family's format, without a model.

The templates are short equivalents of the families' formats. The tool header of a family with a hand-written
renderer consists of the constants of ``renderers``, so that both produce the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from renderers import glm45, llama_3, qwen3
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from engine.models.chat.rendered import RenderedChat
from engine.models.families import family_of

_CHATML = """
{%- if tools %}{{ '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
{{- HEADER }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ FOOTER + '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
{%- set content = m.content.split('</think>')[-1].lstrip('\n') %}
{%- if THINKS and loop.last and not add_generation_prompt %}
{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{- content }}
{%- for call in m.tool_calls or [] %}
{{- '\n' if content or not loop.first }}CALL{% endfor %}{{ '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if THINKS and enable_thinking is defined and not enable_thinking %}
{{- '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"""
_JSON_CALL = """
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}"""
_XML_CALL = """
{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for k, v in call.function.arguments.items() %}
{{- '<parameter=' + k + '>\n' + (v if v is string else v | tojson) + '\n</parameter>\n' }}
{%- endfor %}{{ '</function>\n</tool_call>' }}"""
_LLAMA = """<|begin_of_text|><|start_header_id|>system<|end_header_id|>{{ '\n\n' }}
{%- if tools %}{{ 'Environment: ipython\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' + date_string + '\n\n' }}
{%- set ns = namespace(first=true) %}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}<|eot_id|>
{%- for m in messages %}
{%- if m.role == 'user' %}<|start_header_id|>user<|end_header_id|>{{ '\n\n' }}
{%- if tools and ns.first %}{{ HEADER }}{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\n\n' }}
{%- endfor %}{% endif %}{% set ns.first = false %}{{ m.content | trim }}<|eot_id|>
{%- elif m.role == 'assistant' %}<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}
{%- for call in m.tool_calls or [] %}
{{- '{"name": "' + call.function.name + '", "parameters": ' + (call.function.arguments | tojson) + '}' }}
{%- endfor %}{{ m.content | trim }}<|eot_id|>
{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>{{ '\n\n' }}
{{- m.content | tojson }}<|eot_id|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}{% endif %}"""
_MISTRAL = """<s>
{%- if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS]
{%- for call in m.tool_calls %}
{{- call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}{% endfor %}</s>
{%- elif m.role == 'assistant' %}{{ m.content }}</s>
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
{%- endif %}{% endfor %}"""
_GPT_OSS = """{{ '<|start|>system<|message|>You are a model.\nCurrent date: ' + strftime_now('%Y-%m-%d') }}
{{- '\nReasoning: ' + reasoning_effort + '<|end|>' }}
{%- if messages[0].role == 'system' or tools %}<|start|>developer<|message|>
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}{{ '\ntype ' + tool.function.name }}{% endfor %}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>
{%- elif m.role == 'assistant' and m.tool_calls %}
{{- '<|start|>assistant to=functions.' + m.tool_calls[0].function.name }}
{{- '<|channel|>commentary json<|message|>' }}
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson }}<|end|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
_GEMMA = """<bos>
{%- set offset = 1 if messages[0].role == 'system' else 0 %}
{%- for m in messages[offset:] %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}
{%- if offset and loop.first %}{{ messages[0].content + '\n\n' }}{% endif %}
{{- m.content | trim }}{{ '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
_GLM = """[gMASK]<sop>
{%- if tools %}<|system|>{{ HEADER }}{% for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}
{{- FOOTER }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'system' %}<|system|>{{ '\n' + m.content }}
{%- elif m.role == 'user' %}<|user|>{{ '\n' + m.content }}
{{- '/nothink' if enable_thinking is defined and not enable_thinking }}
{%- elif m.role == 'assistant' %}<|assistant|>{{ '\n<think>' }}
{{- m.reasoning_content.strip() if m.reasoning_content and loop.index0 > ns.last }}</think>
{%- if m.content.strip() %}{{ '\n' + m.content.strip() }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ '\n<tool_call>' + call.function.name + '\n' }}
{%- for k, v in call.function.arguments.items() %}{{ '<arg_key>' + k + '</arg_key>\n<arg_value>' }}
{{- v if v is string else v | tojson }}{{ '</arg_value>\n' }}{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}{{ '<|observation|>\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{{- '\n<think></think>' if enable_thinking is defined and not enable_thinking }}{% endif %}"""


_OPENING_HEADER = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
_HEADER = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"


def _chatml(*, thinks: bool, call: str) -> str:
    template = _CHATML.replace("THINKS", "true" if thinks else "false").replace("CALL", call)
    return _headed(template, qwen3._TOOLS_HEADER, qwen3._TOOLS_FOOTER)


def _headed(template: str, header: str, footer: str = "") -> str:
    return f"{{%- set HEADER = {header!r} %}}{{%- set FOOTER = {footer!r} %}}{template}"


TEMPLATES: Mapping[str, str] = {
    "qwen2": _chatml(thinks=False, call=_JSON_CALL),
    "qwen3": _chatml(thinks=True, call=_JSON_CALL),
    "qwen3_moe": _chatml(thinks=False, call=_XML_CALL),
    "llama": _headed(_LLAMA, llama_3._TOOLS_IN_USER_INTRO),
    "mistral": _MISTRAL,
    "gpt_oss": _GPT_OSS,
    "gemma3_text": _GEMMA,
    "glm4_moe": _headed(_GLM, glm45._TOOLS_HEADER, glm45._TOOLS_FOOTER),
    "deepseek": _chatml(thinks=False, call=_JSON_CALL).replace(_HEADER, _OPENING_HEADER),
}
"""Chat template of each ``model_type``; ``deepseek`` represents headers that open the thinking."""
_THINK = ("<think>", "</think>")
_TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_QWEN = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
SPECIALS: Mapping[str, tuple[str, ...]] = {
    "qwen2": _QWEN,
    "qwen3": _QWEN,
    "qwen3_moe": _QWEN,
    "deepseek": _QWEN,
    "llama": ("<|finetune_right_pad_id|>", "<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>",
              "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"),
    "mistral": ("<pad>", "</s>", "<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                "[ARGS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
                "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "gpt_oss": ("<|endoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>",
                "<|constrain|>", "<|call|>"),
    "gemma3_text": ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    "glm4_moe": ("<|endoftext|>", "<|user|>", "[gMASK]", "<sop>", "<|assistant|>", "<|system|>",
                 "<|observation|>", "/nothink"),
}  # fmt: skip
"""Special tokens of each family: padding, end of sequence, others."""
ORDINARY: Mapping[str, tuple[str, ...]] = {
    "qwen2": _TOOLS[:2],
    "qwen3": (*_TOOLS, *_THINK),
    "qwen3_moe": _TOOLS,
    "deepseek": _THINK,
    "glm4_moe": (*_TOOLS, *_THINK, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
}
"""Markers that are ordinary added tokens of a family's tokenizer."""
FAMILIES = tuple(TEMPLATES)


def chat_tokenizer(family: str, **settings: Any) -> Any:
    """Return a byte-level ``transformers`` tokenizer with a family's tokens and chat template."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIALS[family], *alphabet])}
    # Merges across the start of a turn, which are common in real vocabularies.
    vocabulary |= {"ĊĊ": len(vocabulary), "er": len(vocabulary) + 1}
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[("Ċ", "Ċ"), ("e", "r")]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens(list(SPECIALS[family]))
    backend.add_tokens([AddedToken(token, special=False) for token in ORDINARY.get(family, ())])
    pad, end, *_ = SPECIALS[family]
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token=end, pad_token=pad, clean_up_tokenization_spaces=False,
        **{"chat_template": TEMPLATES[family], **settings},
    )  # fmt: skip


def open_family(family: str, **settings: Any) -> RenderedChat:
    """Return a family's chat, rendered from its tokenizer and template."""
    return RenderedChat(chat_tokenizer(family, **settings), family_of(family).renderer)
