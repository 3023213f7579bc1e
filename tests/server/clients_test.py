#!/usr/bin/env python3
"""The server as openai's and langchain's clients see it. Usage: clients_test.py TESSERA MODEL TOOLS

TOOLS is a folder for a virtual environment with the clients, which is made at the first run. Exit code 77 (skipped) if PyPI
can't be reached and it isn't there.
"""

import os
import subprocess
import sys
import urllib.request

PACKAGES = ["openai==3.54.0", "langchain-openai==1.7.3", "jsonschema==4.26.0"]


def environment(folder):
    """The Python of a virtual environment with PACKAGES."""
    python = os.path.join(folder, "bin", "python")
    stamp = os.path.join(folder, "packages")
    if os.path.exists(stamp) and open(stamp).read() == " ".join(PACKAGES):
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    if subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES]).returncode != 0:
        try:
            urllib.request.urlopen("https://pypi.org/simple/openai/", timeout=10).close()
        except OSError as error:
            print(f"SKIPPED: PyPI cannot be reached ({error}), so that the clients can't be installed")
            sys.exit(77)
        sys.exit("FAILED: pip could not install the clients, though PyPI can be reached")
    with open(stamp, "w") as file:
        file.write(" ".join(PACKAGES))
    return python


if "openai" not in sys.argv[-1:]:
    tools = environment(sys.argv[3])
    os.execv(tools, [tools, *sys.argv[:3], "openai"])

import json

import jsonschema
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from serving import Server, check

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}
STORY = [{"role": "user", "content": "Once upon a time"}]


def expect_error(kind, what, action):
    try:
        action()
    except kind as error:
        check(what in str(error), f"{what!r} is not in: {error}")
        return
    check(False, f"no error that says {what!r}")


def chats(client, model):
    one = client.chat.completions.create(model=model, messages=STORY, max_tokens=12, temperature=0)
    check(one.choices[0].finish_reason == "length" and one.choices[0].message.content, f"an answer: {one}")
    check(one.usage.completion_tokens == 12 and one.usage.total_tokens == 12 + one.usage.prompt_tokens, f"usage: {one.usage}")
    again = client.chat.completions.create(model=model, messages=STORY, max_tokens=12, temperature=0)
    check(again.choices[0].message.content == one.choices[0].message.content, "greedy answers are equal")

    text, usage, reason = "", None, None
    for chunk in client.chat.completions.create(model=model, messages=STORY, max_tokens=12, temperature=0, stream=True,
                                                stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    check(text == one.choices[0].message.content, f"streamed {text!r}, not {one.choices[0].message.content!r}")
    check(reason == "length" and usage.completion_tokens == 12, f"end of the stream: {reason} {usage}")

    several = client.chat.completions.create(model=model, messages=STORY, max_tokens=12, n=3, seed=5, temperature=1)
    texts = [choice.message.content for choice in several.choices]
    check(len(set(texts)) == 3, f"three choices: {texts}")
    same = client.chat.completions.create(model=model, messages=STORY, max_tokens=12, n=3, seed=5, temperature=1)
    check(texts == [choice.message.content for choice in same.choices], "the same seed gives the same choices")

    word = one.choices[0].message.content.split()[2]
    stopped = client.chat.completions.create(model=model, messages=STORY, max_tokens=12, temperature=0, stop=[word])
    check(stopped.choices[0].finish_reason == "stop" and word not in stopped.choices[0].message.content, f"stop: {stopped}")

    with_logprobs = client.chat.completions.create(model=model, messages=STORY, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)
    content = with_logprobs.choices[0].logprobs.content
    check(len(content) == 5 and all(len(token.top_logprobs) == 3 for token in content), f"log-probabilities: {content}")
    check(all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in content), "greedy tokens are the likeliest")
    check(b"".join(bytes(token.bytes) for token in content).decode() == with_logprobs.choices[0].message.content, "their bytes are the text")


def texts(client, model):
    one = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, echo=True)
    check(one.choices[0].text.startswith("Once upon a time") and len(one.choices[0].text) > 20, f"echo: {one}")
    drawn = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2).choices[0].logprobs
    echoed = client.completions.create(model=model, prompt=one.choices[0].text, max_tokens=0, logprobs=2, echo=True)
    scored = echoed.choices[0].logprobs
    check(echoed.choices[0].text == one.choices[0].text and echoed.usage.completion_tokens == 0, f"echo alone: {echoed}")
    check(scored.token_logprobs[0] is None and scored.top_logprobs[0] is None, f"the first has none: {scored}")
    check(scored.tokens[-8:] == drawn.tokens and all(
        abs(a - b) < 0.02 for a, b in zip(scored.token_logprobs[-8:], drawn.token_logprobs)), f"as when drawn: {scored} {drawn}")
    check(scored.text_offset[-8:] == [offset + len("Once upon a time") for offset in drawn.text_offset], f"offsets: {scored}")
    two = client.completions.create(model=model, prompt=["Once upon a time", "One day"], max_tokens=8, temperature=0, logprobs=1)
    check(one.choices[0].text == "Once upon a time" + two.choices[0].text, "a batch's answer is the single one's")
    check(len(two.choices) == 2 and len(two.choices[1].logprobs.tokens) == 8, f"two prompts: {two}")
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True))
    check(streamed == two.choices[0].text, f"streamed: {streamed!r}")


def embeddings(client, model):
    both = client.embeddings.create(model=model, input=["A cat sat.", "A dog ran."])  # as base64
    floats = client.embeddings.create(model=model, input="A dog ran.", encoding_format="float")
    first, second = (entry.embedding for entry in both.data)
    check(abs(sum(x * x for x in first) - 1) < 1e-3 and first != second, "embeddings have length 1")
    check(max(abs(a - b) for a, b in zip(second, floats.data[0].embedding)) < 1e-3, "base64 and floats are the same")
    tokens = OpenAIEmbeddings(model=model, base_url=str(client.base_url), api_key="key", check_embedding_ctx_length=False)
    check(len(tokens.embed_query("A cat sat.")) == len(first), "langchain's embeddings")


def structured(client, model):
    answer = client.chat.completions.create(model=model, messages=STORY, seed=3, response_format={
        "type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}})
    document = json.loads(answer.choices[0].message.content)
    jsonschema.validate(document, SCHEMA)
    check(list(document) == ["name", "age", "kind"], f"fields in the schema's order: {document}")
    any_object = client.chat.completions.create(model=model, messages=STORY, seed=3, max_tokens=60, response_format={"type": "json_object"})
    check(any_object.choices[0].message.content.startswith("{"), f"an object: {any_object}")
    expect_error(openai.BadRequestError, "dependentSchemas", lambda: client.chat.completions.create(model=model, messages=STORY, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "dependentSchemas": {"a": {"not": {}}}}}}))
    either = client.chat.completions.create(model=model, messages=STORY, seed=5, max_tokens=200, tools=[TOOL], response_format={
        "type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}})
    if either.choices[0].message.tool_calls:
        check(either.choices[0].message.tool_calls[0].function.name == "weather", f"a call or a pet: {either}")
    else:
        jsonschema.validate(json.loads(either.choices[0].message.content), SCHEMA)
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = client.chat.completions.create(model=model, messages=STORY, seed=4, tools=[TOOL], tool_choice=choice)
        call = answer.choices[0].message.tool_calls[0]
        check(answer.choices[0].finish_reason == "tool_calls" and call.function.name == "weather", f"a call: {answer}")
        check(json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), f"its arguments: {call}")
    arguments = ""
    for chunk in client.chat.completions.create(model=model, messages=STORY, seed=4, tools=[TOOL], tool_choice="required", stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            arguments += part.function.arguments
    check(json.loads(arguments)["city"] in ("Paris", "Rome"), f"streamed arguments: {arguments}")


def errors(client, model):
    expect_error(openai.NotFoundError, "gpt-4o", lambda: client.chat.completions.create(model="gpt-4o", messages=STORY))
    expect_error(openai.BadRequestError, "temperature is 3", lambda: client.chat.completions.create(model=model, messages=STORY, temperature=3))
    expect_error(openai.BadRequestError, "of prompt and answer", lambda: client.completions.create(model=model, prompt="word " * 3000))
    expect_error(openai.AuthenticationError, "API key",
                 lambda: openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0).models.list())


def langchain(client, model):
    chat = ChatOpenAI(model=model, base_url=str(client.base_url), api_key="key", temperature=0, max_tokens=12)
    whole = chat.invoke("Once upon a time")
    check(whole.content and whole.usage_metadata["output_tokens"] == 12, f"langchain's answer: {whole}")
    check("".join(chunk.content for chunk in chat.stream("Once upon a time")) == whole.content, "langchain's stream")


def main():
    tessera, model = sys.argv[1:3]
    with Server(tessera, model, "--api-key", "key") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0, timeout=120)
        check(client.models.list().data[0].id == server.name, "the model's name")
        for part in (chats, texts, embeddings, structured, errors, langchain):
            part(client, server.name)
    with Server(tessera, model, "--max-waiting", "2", "--model-name", "stories/a small one") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
        check(client.models.retrieve("stories/a small one").id == server.name, "a model by its name")
        check(len(client.completions.create(model=server.name, prompt="Once", n=2, max_tokens=2).choices) == 2, "as many as may wait")
        expect_error(openai.BadRequestError, "n is 3", lambda: client.completions.create(model=server.name, prompt="Once", n=3))
    print(f"{check.count} checks passed")


main()
