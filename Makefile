# loam: everyday commands. Meson does the work; `make run` and `make test` do everything on a fresh machine.
BUILD ?= build
RELEASE ?= build-release
MODEL ?=

.PHONY: run build release test install lint format bench asan tsan fuzz clean

# Install what is needed, build, and serve: the built-in model, or MODEL=folder-or-name.
run: release
	$(RELEASE)/src/cli/loam serve $(MODEL)

release:
	@scripts/setup
	@[ -d $(RELEASE) ] || meson setup $(RELEASE) --buildtype=release -Dtests=false >/dev/null
	ninja -C $(RELEASE)

build:
	@scripts/setup test
	@[ -d $(BUILD) ] || meson setup $(BUILD) -Dwerror=true >/dev/null
	ninja -C $(BUILD)

test: build
	scripts/test $(BUILD)

# As root, or with DESTDIR=folder.
install: release
	meson install -C $(RELEASE) --no-rebuild

asan:
	@scripts/setup test
	@[ -d build-asan ] || meson setup build-asan -Db_sanitize=address,undefined -Db_lundef=false >/dev/null
	ninja -C build-asan
	scripts/test build-asan

tsan:
	@scripts/setup test
	@[ -d build-tsan ] || meson setup build-tsan -Db_sanitize=thread -Db_lundef=false >/dev/null
	ninja -C build-tsan
	scripts/test build-tsan

# clang without a warning, headers alone, rooms.
lint:
	scripts/lint

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

# Speed, as ratios against a baseline in the same run; see docs/performance.md.
bench: release
	bench/run

fuzz:
	scripts/fuzz

clean:
	rm -rf build build-release build-asan build-tsan build-clang build-fuzz
