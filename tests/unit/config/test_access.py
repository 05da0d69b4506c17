"""The tokens file: what it allows, how it is read again, and what a wrong one changes (nothing)."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from airflow_lake_provider.config.access import Grant, Right, TokensSource, parse_tokens
from airflow_lake_provider.errors import ConfigError, ForbiddenError, PathNotAllowedError, UnauthorisedError

WHERE = {"where": "header X", "option": "callback_tokens"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def entry(name: str, *tokens: str, roots: str = "[/lake/shop]", rights: str = "[notify]") -> str:
    digests = ", ".join(hashlib.sha256(token.encode()).hexdigest() for token in tokens)
    return f"  - name: {name}\n    roots: {roots}\n    rights: {rights}\n    sha256: [{digests}]\n"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.yaml"


def accepts(source: TokensSource, token: str) -> bool:
    try:
        source.authorise(token, Right.NOTIFY, **WHERE)
    except UnauthorisedError:
        return False
    return True


def test_token_is_rotated_without_a_restart_and_without_a_gap(file: Path, clock: Clock) -> None:
    file.write_text("tokens:\n" + entry("shop", "first-token"))
    source = TokensSource(path=str(file), monotonic_s=clock)
    assert accepts(source, "first-token")
    for content, valid in (
        (entry("shop", "first-token", "second-token"), {"first-token", "second-token"}),
        (entry("shop", "second-token"), {"second-token"}),
    ):
        file.write_text("tokens:\n" + content)
        for _ in range(4):
            clock.now_s += 1
            assert accepts(source, "second-token") or accepts(source, "first-token")
        assert {token for token in ("first-token", "second-token") if accepts(source, token)} == valid


def test_every_half_of_a_file_that_is_being_written_leaves_the_last_good_tokens(file: Path, clock: Clock) -> None:
    whole = "tokens:\n" + entry("shop", "shop-token") + entry("bank", "bank-token", roots="[/lake/bank]")
    file.write_text(whole)
    source = TokensSource(path=str(file), monotonic_s=clock)
    assert accepts(source, "shop-token")
    for length in range(len(whole)):
        file.write_text(whole[:length])
        clock.now_s += 1
        assert accepts(source, "shop-token"), length
        assert accepts(source, "bank-token"), length


def test_wrong_file_is_named_and_keeps_the_last_good_tokens_for_as_long_as_it_is_wrong(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("tokens:\n" + entry("shop", "shop-token"))
    source = TokensSource(path=str(file), monotonic_s=clock)
    assert accepts(source, "shop-token")
    file.write_text("tokens:\n" + entry("shop", "other-token", rights="[admin]"))
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            clock.now_s += 60
            assert accepts(source, "shop-token")
    assert "tokens.0.rights.0" in source.problem
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    file.write_text("tokens:\n" + entry("shop", "other-token"))
    os.utime(file, (1, 1))  # as large as the first one, and the file system's clock may not have moved
    for _ in range(5):
        clock.now_s += 1
        accepts(source, "x")
    assert (source.problem, accepts(source, "shop-token"), accepts(source, "other-token")) == ("", False, True)


def test_missing_file_leaves_the_tokens_of_the_settings_valid(file: Path, clock: Clock) -> None:
    source = TokensSource(("callback-token",), ("service-token",), str(file), clock)
    assert accepts(source, "callback-token")
    assert not accepts(source, "shop-token")
    assert str(file) in source.problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("tokens: [", "not YAML", id="half-yaml"),
        pytest.param("", "the file", id="empty"),
        pytest.param("tokens:\n" + entry("a", "t", roots="[]"), "tokens.0.roots", id="no-roots"),
        pytest.param("tokens:\n" + entry("a", "t", roots="[lake]"), "not absolute", id="relative-root"),
        pytest.param("tokens:\n" + entry("a", "t", roots="[/lake/../etc]"), "'..'", id="root-with-dots"),
        pytest.param("tokens:\n" + entry("a", "t", rights="[]"), "tokens.0.rights", id="no-rights"),
        pytest.param("tokens:\n" + entry("a"), "tokens.0.sha256", id="no-token"),
        pytest.param("tokens:\n" + entry("a", "t").replace("sha256", "token"), "token", id="plain-token"),
        pytest.param("tokens:\n" + entry("a", "t") + entry("a", "u"), "'a' is there twice", id="name-twice"),
        pytest.param("tokens:\n" + entry("a", "t") + entry("b", "t"), "is there twice", id="token-twice"),
    ],
)
def test_wrong_content_is_refused_with_its_place(content: str, words: str) -> None:
    with pytest.raises(ConfigError, match="tokens") as refused:
        parse_tokens(content, "tokens.yaml")
    assert words in str(refused.value)


def test_file_that_every_user_may_write_is_refused(file: Path) -> None:
    file.write_text("tokens:\n" + entry("shop", "shop-token"))
    file.chmod(0o666)
    source = TokensSource(path=str(file))
    assert not accepts(source, "shop-token")
    assert "chmod o-w" in source.problem


def test_token_covers_every_spelling_of_its_roots_and_nothing_next_to_them() -> None:
    grant = Grant("shop", frozenset({Right.NOTIFY}), ("s3a://Lake/shop", "/lake/shop/"))
    for inside in ("s3://lake/shop/orders", "s3n://lake:443/shop", "/lake/shop", "/lake/shop/a/b"):
        assert grant.covers(inside), inside
    for outside in ("s3://lake/shopping", "s3://lake2/shop/orders", "/lake/shop2", "/lake", "gs://lake/shop/orders"):
        assert not grant.covers(outside), outside
        with pytest.raises(PathNotAllowedError, match="'shop'"):
            grant.require_path(outside)


def test_missing_right_is_named_and_no_token_is_kept_or_shown(file: Path, clock: Clock) -> None:
    file.write_text("tokens:\n" + entry("shop", "shop-token"))
    source = TokensSource(("callback-token",), path=str(file), monotonic_s=clock)
    with pytest.raises(ForbiddenError, match="'shop' has no right 'operate', its rights are: notify"):
        source.authorise("shop-token", Right.OPERATE, where="x", option="service_tokens")
    kept = repr([vars(source), source._load(), source._configured])
    assert "shop-token" not in kept
    assert "callback-token" not in kept
