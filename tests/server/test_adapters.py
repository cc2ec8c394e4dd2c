"""Adapters over every endpoint, and loading them while the server runs."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from cudaprefill.engine.engine import Engine
from tests.adapters.by_hand import write_prompt_adapter
from tests.engine.harness import MAX_MODEL_LEN, expected, text_of
from tests.server.adapter_server import NUM_VIRTUAL, AdapterServer, ChatAdapterServer
from tests.server.chat_server import Socket
from tests.server.running import MODEL, PATIENCE, RunningServer

PROMPT = [7, 8, 9] * 7
VIRTUAL = [-1 - position for position in range(NUM_VIRTUAL)]
GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("adapters")
    server = AdapterServer(config={"allow_runtime_adapters": str(folder)})
    server.folder = folder
    with server:
        yield server


def complete(client: httpx.Client, model: str, prompt: list[int] = PROMPT, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"model": model, "prompt": prompt, **GREEDY, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_the_models_are_listed_with_their_parent(server: AdapterServer) -> None:
    with server.client() as client:
        models = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
        assert list(models) == [MODEL, "first", "second"]
        assert models[MODEL]["parent"] is None
        assert models["first"]["parent"] == MODEL
        assert (models["first"]["kind"], models["first"]["virtual_tokens"]) == ("prompt tuning", NUM_VIRTUAL)
        assert models["first"]["max_model_len"] == MAX_MODEL_LEN - NUM_VIRTUAL
        assert client.get("/v1/models/second").json() == models["second"]


def test_a_request_names_its_adapter_as_its_model(server: AdapterServer) -> None:
    """The fake model continues what it finds in the KV cache, virtual tokens among it."""
    with server.client() as client:
        answers = {name: complete(client, name) for name in (MODEL, "first", "second")}
    for name, answer in answers.items():
        prompt = PROMPT if name == MODEL else VIRTUAL + PROMPT
        assert answer["model"] == name
        assert answer["choices"][0]["text"] == text_of(expected(prompt)[:5])


def test_usage_counts_the_text_and_tells_of_virtual_tokens_apart(server: AdapterServer) -> None:
    with server.client() as client:
        usages = [complete(client, name)["usage"] for name in ("first", "first", "second", MODEL, MODEL)]
    counted = [(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) for usage in usages]
    assert counted == [(21, 5, 26)] * 5
    details = [usage["prompt_tokens_details"] for usage in usages]
    virtual = {"virtual_tokens": 64}
    assert details == [
        {"cached_tokens": 0, **virtual, "cached_virtual_tokens": 0},
        {"cached_tokens": 16, **virtual, "cached_virtual_tokens": 64},
        {"cached_tokens": 0, **virtual, "cached_virtual_tokens": 0},
        {"cached_tokens": 0},
        {"cached_tokens": 16},
    ]


def test_no_hit_between_salts_adapters_and_plain_prompts(server: AdapterServer) -> None:
    with server.client() as client:
        prompt = [3] * 48
        asked: list[tuple[str, dict[str, Any]]] = [
            (MODEL, {"cache_salt": "first"}),
            (MODEL, {"cache_salt": "second"}),
            (MODEL, {}),
            ("first", {}),
            ("first", {"cache_salt": "first"}),
            ("second", {"cache_salt": "first"}),
        ]
        for model, fields in asked:
            details = complete(client, model, prompt, **fields)["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == 0
            assert details.get("cached_virtual_tokens", 0) == 0
        for model, fields in asked:
            details = complete(client, model, prompt, **fields)["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == 32


def test_a_prompt_that_fits_only_without_the_virtual_tokens(server: AdapterServer) -> None:
    prompt = [3] * (MAX_MODEL_LEN - NUM_VIRTUAL)
    with server.client() as client:
        complete(client, MODEL, prompt)
        error = client.post("/v1/completions", json={"model": "first", "prompt": prompt}).json()["error"]
        assert error["message"].startswith("the prompt has 448 tokens behind 64 virtual ones and leaves no room")
        length = complete(client, "first", prompt[:-2], max_tokens=9)["usage"]
        assert length["completion_tokens"] == 2


def test_tokenize_knows_the_adapters(server: AdapterServer) -> None:
    with server.client() as client:
        answers = [client.post("/tokenize", json={"model": name, "prompt": "ABC"}).json() for name in (MODEL, "first")]
        assert answers[0]["tokens"] == answers[1]["tokens"]
        assert [answer["max_model_len"] for answer in answers] == [MAX_MODEL_LEN, MAX_MODEL_LEN - NUM_VIRTUAL]
        assert client.post("/tokenize", json={"model": "nobody", "prompt": "ABC"}).status_code == 404


def test_chat_and_responses(tmp_path: Path) -> None:
    server = ChatAdapterServer()
    server.folder = tmp_path
    with server, server.client() as client:
        messages = [{"role": "user", "content": "hello there"}]
        fields = {"temperature": 0, "messages": messages, "max_tokens": 3}
        answers = [client.post("/v1/chat/completions", json={"model": "first", **fields}).json() for _ in range(2)]
        assert answers[0]["model"] == "first"
        details = [answer["usage"]["prompt_tokens_details"] for answer in answers]
        assert [each["cached_virtual_tokens"] for each in details] == [0, 64]

        body = {"model": "second", "input": "hello there", "temperature": 0, "max_output_tokens": 3}
        response = client.post("/v1/responses", json=body).json()
        assert response["model"] == "second"
        assert response["usage"]["input_tokens_details"]["virtual_tokens"] == 64
        assert response["usage"]["input_tokens_details"]["cached_virtual_tokens"] == 0
        socket = Socket(server)
        socket.create("hello there", model="second", max_output_tokens=3)
        last = socket.until("response.completed", "response.incomplete")[-1]["response"]
        assert last["usage"]["input_tokens_details"]["cached_virtual_tokens"] == 64
        assert last["usage"]["input_tokens"] == response["usage"]["input_tokens"]
        socket.create("hello", model="nobody")
        assert socket.until("error")[-1]["error"]["code"] == "model_not_found"
        socket.raw.close()


def test_blocks_of_an_adapter_are_marked_and_described(server: AdapterServer) -> None:
    with server.client() as client:
        server.await_(server.state.engine.reset_prefix_cache())
        complete(client, "first")
        complete(client, MODEL)
        with connect(f"ws://127.0.0.1:{server.port}/v1/telemetry") as socket:

            def ask(**message: Any) -> dict[str, Any]:
                socket.send(json.dumps(message))
                answer: dict[str, Any] = json.loads(socket.recv(PATIENCE))
                return answer

            letters = ask(type="telemetry.subscribe", events=["blocks"])["blocks"]
            assert (letters.count("C"), letters.count("c"), letters.count(".")) == (4, 2, 58)
            virtual = [block for block, letter in enumerate(letters) if letter == "C"]
            text = [block for block, letter in enumerate(letters) if letter == "c"]
            described = [ask(type="telemetry.describe_block", block=block) for block in (*virtual, *text)]
    told = [(each.get("virtual_tokens"), each.get("adapter"), len(each["token_ids"])) for each in described]
    assert told[:4] == [(16, "first", 0)] * 4
    assert sorted(told[4:], key=str) == [(None, "first", 16), (None, None, 16)]


def test_an_explanation_names_the_hits_of_an_adapter(server: AdapterServer) -> None:
    with server.client() as client:
        client.get("/v1/requests/nobody/explain")  # from here on requests are remembered
        complete(client, "second")
        request_id = complete(client, "second", prompt=[4] * 20)["id"]
        account = client.get(f"/v1/requests/{request_id}/explain").json()
    assert (account["prompt_tokens"], account["virtual_tokens"], account["adapter"]) == (84, 64, "second")
    prefix = account["prefix"]
    assert (prefix["virtual_hit_tokens"], prefix["adapter"]) == (64, "second")


# --- Loading and unloading ---


def post(client: httpx.Client, what: str, **body: Any) -> httpx.Response:
    return client.post(f"/v1/{what}_lora_adapter", json=body)


@pytest.fixture
def third(server: AdapterServer) -> Iterator[httpx.Client]:
    """A client; what was loaded as `third` is unloaded after the test."""
    with server.client() as client:
        yield client
        post(client, "unload", lora_name="third")


def test_load_use_unload(server: AdapterServer, third: httpx.Client) -> None:
    loaded = post(third, "load", lora_name="third", lora_path="third")
    assert (loaded.status_code, loaded.text) == (200, "Success: adapter 'third' was loaded.")
    assert complete(third, "third")["usage"]["prompt_tokens_details"]["cached_virtual_tokens"] == 0
    assert "third" in [model["id"] for model in third.get("/v1/models").json()["data"]]
    unloaded = post(third, "unload", lora_name="third")
    assert (unloaded.status_code, unloaded.text) == (200, "Success: adapter 'third' was unloaded.")
    assert third.post("/v1/completions", json={"model": "third", "prompt": "A"}).status_code == 404
    again = post(third, "unload", lora_name="third")
    assert (again.status_code, again.json()["error"]["param"]) == (404, "lora_name")


def test_another_adapter_under_the_same_name_finds_none_of_the_old_blocks(
    server: AdapterServer, third: httpx.Client
) -> None:
    hits = []
    for number, seed in enumerate((5, 6, 5)):
        path = write_prompt_adapter(server.folder / f"version-{number}", NUM_VIRTUAL, seed)
        assert post(third, "load", lora_name="third", lora_path=str(path)).status_code == 200
        hits.append(complete(third, "third")["usage"]["prompt_tokens_details"]["cached_virtual_tokens"])
        assert post(third, "unload", lora_name="third").status_code == 200
    assert hits == [0, 0, 64]  # the same content is the same adapter


def test_an_unload_waits_for_running_requests_and_refuses_new_ones(server: AdapterServer, third: httpx.Client) -> None:
    assert post(third, "load", lora_name="third", lora_path="third").status_code == 200
    adapter = server.state.engine.adapters.get("third")
    answers: dict[str, Any] = {}

    def ask() -> None:
        with server.client() as client:
            answers["complete"] = complete(client, "third")

    def unload() -> None:
        with server.client() as client:
            answers["unload"] = post(client, "unload", lora_name="third").status_code

    server.runner.gate.clear()
    threads = [threading.Thread(target=ask), threading.Thread(target=unload)]
    threads[0].start()
    server.wait_until(lambda: adapter.num_uses == 1, "the request to arrive")
    threads[1].start()
    server.wait_until(lambda: "third" not in server.state.engine.adapters, "the name to go")
    assert third.post("/v1/completions", json={"model": "third", "prompt": "A"}).status_code == 404
    assert answers == {}
    server.runner.gate.set()
    for thread in threads:
        thread.join()
    assert answers["unload"] == 200
    assert answers["complete"]["choices"][0]["text"] == text_of(expected(VIRTUAL + PROMPT)[:5])


def test_a_load_in_place_leaves_running_requests_what_they_began_with(
    server: AdapterServer, third: httpx.Client
) -> None:
    assert post(third, "load", lora_name="third", lora_path="third", load_inplace=True).status_code == 200
    before = server.state.engine.adapters.get("third")
    server.runner.gate.clear()
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        with server.client() as client:
            answers.append(complete(client, "third"))

    asking = threading.Thread(target=ask)
    asking.start()
    server.wait_until(lambda: before.num_uses == 1, "the request to arrive")
    path = str(write_prompt_adapter(server.folder / "shorter", 16, 9))
    assert post(third, "load", lora_name="third", lora_path="nowhere", load_inplace=True).status_code == 400
    assert server.state.engine.adapters.get("third") is before
    assert post(third, "load", lora_name="third", lora_path=path, load_inplace=True).status_code == 200
    server.runner.gate.set()
    asking.join()
    details = [
        each["usage"]["prompt_tokens_details"]["virtual_tokens"] for each in (*answers, complete(third, "third"))
    ]
    assert details == [NUM_VIRTUAL, 16]
    assert post(third, "load", lora_name="third", lora_path="third", load_inplace="yes").status_code == 400
    assert post(third, "load", lora_name=MODEL, lora_path="third", load_inplace=True).status_code == 400


def test_what_cannot_be_loaded(server: AdapterServer, third: httpx.Client) -> None:
    write_prompt_adapter(server.folder / "wrong", NUM_VIRTUAL, token_dim=4)
    for name, path, reason in (
        ("third", "wrong", "token_dim is 4, but the model has the hidden size 96"),
        ("first", "first", "an adapter 'first' is loaded already"),
        (MODEL, "first", "is the name of the model"),
        ("", "first", "must be 1 to 256 printable characters"),
        ("third", "nowhere", "is not a folder"),
    ):
        response = post(third, "load", lora_name=name, lora_path=path)
        assert response.status_code == 400, response.text
        assert reason in response.json()["error"]["message"]


def test_adapters_come_from_inside_the_folder_alone(server: AdapterServer, third: httpx.Client, tmp_path: Path) -> None:
    outside = write_prompt_adapter(tmp_path / "outside", NUM_VIRTUAL)
    inside = server.folder / "links"
    inside.mkdir()
    os.symlink(outside, inside / "folder")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (inside / f"with {file}").mkdir()
        for each in ("adapter_config.json", "adapter_model.safetensors"):
            target = outside if each == file else server.folder / "first"
            os.symlink(target / each, inside / f"with {file}" / each)
    os.symlink(inside / "loop", inside / "loop")
    for path in (
        str(outside),
        os.path.relpath(outside, server.folder),
        "first/../../" + os.path.relpath(outside, server.folder.parent),
        "links/folder",
        "links/with adapter_config.json",
        "links/with adapter_model.safetensors",
        "links/loop",
        "..",
        "/",
        "\0",
    ):
        response = post(third, "load", lora_name="third", lora_path=path)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "lora_path", path
    os.symlink(server.folder / "second", inside / "inside")
    assert post(third, "load", lora_name="third", lora_path="links/inside").status_code == 200


def test_off_unless_a_folder_is_named() -> None:
    with RunningServer() as server, server.client() as client:
        for response in (
            post(client, "load", lora_name="third", lora_path="third"),
            post(client, "unload", lora_name="third"),
        ):
            assert response.status_code == 403
            assert response.json()["error"]["code"] == "runtime_adapters_not_allowed"


def test_an_adapter_with_the_name_of_the_model_stops_the_start(tmp_path: Path) -> None:
    server = AdapterServer(config={"served_model_names": ("base", "first")})
    server.folder = tmp_path
    with pytest.raises(ValueError, match="'first' is the name of an adapter and of the model"):
        server.__enter__()


def test_an_unload_whose_client_goes_leaves_the_engine_alive(server: AdapterServer, third: httpx.Client) -> None:
    """The request that the unload waited for ends as any other."""
    assert post(third, "load", lora_name="third", lora_path="third").status_code == 200
    adapter = server.state.engine.adapters.get("third")
    server.runner.gate.clear()
    body = {"model": "third", "prompt": PROMPT, **GREEDY, "max_tokens": 1000, "stream": True}
    asking = server.post_raw("/v1/completions", body)
    server.wait_until(lambda: adapter.num_uses == 1, "the request to arrive")
    unloading = server.post_raw("/v1/unload_lora_adapter", {"lora_name": "third"})
    server.wait_until(lambda: "third" not in server.state.engine.adapters, "the name to go")
    # Behind the step that waits, the engine hears of the unload, and then this stops it before the next one.
    heard = threading.Event()

    def stop_again(engine: Engine) -> None:
        server.runner.gate.clear()
        heard.set()

    server.state.engine._engine.call(stop_again)
    server.runner.gate.set()
    assert heard.wait(PATIENCE)
    assert adapter.num_uses == 1
    unloading.close()
    server.wait_until(lambda: server.state.in_flight == 1, "the unload to be given up")
    server.runner.gate.set()
    asking.close()
    server.wait_until(lambda: adapter.num_uses == 0, "the request to end")
    complete(third, MODEL)


def test_names_come_and_go_under_load(tmp_path: Path) -> None:
    """Loads, unloads, requests and clients that go, at once in a small pool: answers are right and no use is left."""
    server = AdapterServer(config={"allow_runtime_adapters": str(tmp_path)}, num_blocks=14)
    server.folder = tmp_path
    wrong: list[object] = []

    def one_client(seed: int) -> None:
        choose = random.Random(seed)
        with server.client() as client:
            for _ in range(40):
                what, name = choose.random(), choose.choice(["first", "second", "third"])
                prompt = [choose.choice([1, 2]) for _ in range(choose.choice([1, 17, 40]))]
                if what < 0.2:
                    if post(client, "load", lora_name=name, lora_path=name).status_code not in (200, 400):
                        wrong.append(("load", name))
                elif what < 0.3:
                    if post(client, "unload", lora_name=name).status_code not in (200, 404):
                        wrong.append(("unload", name))
                elif what < 0.4:
                    server.post_raw("/v1/unload_lora_adapter", {"lora_name": name}).close()
                elif what < 0.5:
                    server.post_raw("/v1/completions", {"model": name, "prompt": prompt, "stream": True}).close()
                else:
                    asked = {"model": name, "prompt": prompt, **GREEDY, "n": choose.choice([1, 2])}
                    response = client.post("/v1/completions", json=asked)
                    if response.status_code == 404:
                        continue
                    texts = {choice["text"] for choice in response.json()["choices"]}
                    if texts != {text_of(expected(VIRTUAL + prompt)[:5])}:
                        wrong.append((asked, response.text))

    with server:
        clients = [threading.Thread(target=one_client, args=(seed,)) for seed in range(5)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        assert wrong == []
        server.wait_until_idle()
        server.in_engine(lambda engine: engine.check())
        assert [adapter.num_uses for adapter in server.state.engine.adapters if adapter.num_uses] == []
