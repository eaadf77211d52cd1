# What people type. Each target installs what it needs, then does one thing.
#
#   make demo             origin, proxy on 127.0.0.1:8080 and clients, with a live page;
#                         DEMO_SECONDS=n ends it by itself
#   make test             formatting, lints, all tests, licences
#   make sim SEEDS=2000   the simulation with many seeds (FIRST=fresh: with some that nobody has
#                         tried), and what hostile rows were played
#   make bench            measures against nginx and HAProxy, also with fast and slow requests
#                         beside each other, as root also what blocking and interception cost, and
#                         what a slow link gains: nearly three hours; QUICK=1 only the first, in
#                         under 5 minutes; EXPERIMENT=NAME runs another experiment,
#                         `weir bench list` shows them; BENCH="--only NAME" picks in it
#   make chaos            servers are killed, paused and replaced under load for CHAOS_SECONDS, on
#                         both drivers, and certificates exchanged EXCHANGES times; weir is reloaded
#                         RELOADS and upgraded UPGRADES times
#   make origins          real servers and imitations behind weir's defaults, ORIGINS_SECONDS each
#                         (docs/servers.md); ORIGINS="NAME NAME" picks some
#   make icount           instructions for each operation (valgrind); ICOUNT=--cost shows what
#                         counting costs
#   make docs             the manual as a site, target/docs/index.html, with every link checked; the
#                         first time it installs mdBook
#   make dist             packages in target/dist: tar.gz, deb, rpm; the program static if this
#                         machine can build that; 6 minutes on 2 cores, and 3 the first time, for
#                         the mdBook of `make docs`
#   make dist-check       looks into them, and as root installs, starts, reloads and removes deb and
#                         rpm in a root that is thrown away, and has a real systemd restart and
#                         upgrade weir under load there
#   make fuzz             fuzz targets for FUZZ_SECONDS each (needs cargo-fuzz)
#   make fmt lint setup   one step of the above

CARGO ?= cargo
# Release code that links quickly; `make bench PROFILE=release` for the last few per cent.
PROFILE ?= bench-fast
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
WEIR := $(TARGET_DIR)/$(PROFILE)/weir
DEMO_SECONDS ?= 0
DEMO_LISTEN ?= 127.0.0.1:8080
FUZZ_SECONDS ?= 60
SEEDS ?= 2000
FIRST ?= 0
# What BENCH picks, it picks in one of them; QUICK=1 has time for one.
EXPERIMENT ?= targets $(if $(BENCH)$(QUICK),,mixed block pep wan)

ORIGINS ?=
ORIGINS_SECONDS ?= 20
CHAOS_SECONDS ?= 60
EXCHANGES ?= 10000
RELOADS ?= 10000
UPGRADES ?= 500
# Most tests wait for sockets and programs more than they compute.
TEST_THREADS ?= $(shell expr 4 \* $$(nproc))

.PHONY: demo test sim bench chaos origins icount docs dist dist-check fuzz fmt lint unit licences setup build

build:
	@scripts/setup build
	@WEIR_COMMIT=$$(scripts/commit) $(CARGO) build --quiet --locked --profile $(PROFILE) --package weir

demo: build
	@exec $(WEIR) demo --listen $(DEMO_LISTEN) --seconds $(DEMO_SECONDS)

test: setup
	@echo "make test: on 2 cores usually about 35 minutes the first time (15 to compile), 20 later; on a busy machine more" >&2
	$(CARGO) fmt --all --check
	@CARGO="$(CARGO)" RUST_TEST_THREADS=$(TEST_THREADS) scripts/test
	@scripts/licences

sim: setup
	WEIR_SIM_SEEDS=$(SEEDS) WEIR_SIM_FIRST=$(FIRST) $(CARGO) test --locked --package weir-worker --test sim -- --nocapture

bench: setup
	@$(MAKE) --no-print-directory build PROFILE=$(if $(QUICK),bench-fast,$(PROFILE))
	@for experiment in $(EXPERIMENT); do $(WEIR) bench $$experiment $(if $(QUICK),--quick) $(BENCH) || exit; done

chaos: setup
	WEIR_CHAOS_SECONDS=$(CHAOS_SECONDS) $(CARGO) test --locked --package weir --test e2e chaos:: -- --test-threads 1
	WEIR_RELOADS=$(RELOADS) $(CARGO) test --locked --package weir --test e2e reloads_under_load_lose -- --test-threads 1
	WEIR_UPGRADES=$(UPGRADES) $(CARGO) test --locked --package weir --test e2e upgrades_under_load -- --test-threads 1
	WEIR_EXCHANGES=$(EXCHANGES) $(CARGO) test --locked --package weir --test e2e exchanges_at -- --test-threads 1

origins: build
	@python3 -B scripts/origins/run.py $(WEIR) $(TARGET_DIR)/origins $(ORIGINS_SECONDS) $(ORIGINS)

icount: setup
	@scripts/icount $(ICOUNT)

docs:
	@CARGO="$(CARGO)" scripts/docs

# Without mdBook (69) the packages have no site.
dist:
	-@scripts/setup dist
	@CARGO="$(CARGO)" scripts/docs || [ $$? = 69 ]
	@scripts/dist

dist-check:
	@scripts/dist check

fuzz:
	@scripts/fuzz $(FUZZ_SECONDS)

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --locked --workspace

licences:
	@scripts/licences

setup:
	@scripts/setup
