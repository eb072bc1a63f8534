#!/usr/bin/env bash
# Make or update the virtual environment .venv: tools/set_up_environment.sh EXTRAS
#
# EXTRAS names the extras whose packages are installed too, e.g. "ray,data". All are installed
# under constraints.txt. An environment whose last set-up did not finish is made anew,
# because a package that was half written looks installed to pip.
set -euo pipefail

extras=$1
venv=.venv
unfinished=$venv/.set-up-unfinished # exists while packages are being written
installed=$venv/.installed-requirements

say() { printf '%s\n' "set-up: $*" >&2; }
die() {
    say "$*"
    exit 1
}

is_suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        is_suitable "$PYTHON" ||
            die "PYTHON must be an interpreter of Python 3.11 to 3.14, got '$PYTHON'."
        printf '%s' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if is_suitable "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "found no Python 3.11 to 3.14 on PATH. Install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

check_tools() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$1 cannot make virtual environments. Install its venv package (on Debian and Ubuntu: apt-get install python3-venv)."
    local header
    header=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
    [[ -e $header ]] ||
        die "the C headers of $1 are missing ($header). Install them (on Debian and Ubuntu: apt-get install python3-dev)."
    local compiler=${CXX:-}
    if [[ -z $compiler ]]; then
        compiler=$(command -v c++ || command -v g++ || command -v clang++) ||
            die "found no C++ compiler. Install one (on Debian and Ubuntu: apt-get install g++), or name it in CXX."
    fi
    # CXX may carry options ("ccache g++"), so it is split into words on purpose.
    # shellcheck disable=SC2086
    echo '#include <span>
int main() {}' | $compiler -std=c++20 -x c++ -fsyntax-only - ||
        die "the C++ compiler '$compiler' cannot compile C++20. GCC 11, Clang 14 or newer can; name one in CXX."
}

# Two set-ups at once would delete each other's files: the later one waits.
if command -v flock >/dev/null; then
    exec 9<"$0"
    flock 9
fi

python=$(find_python)
check_tools "$python"

# The scripts of an environment hold its absolute path, so a moved checkout needs a new one.
made_for=$(cat "$venv/.made-for" 2>/dev/null || true)
if [[ -e $unfinished || $made_for != "$PWD" ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
    say "making $venv with $("$python" --version)"
    rm -f "$venv/.made-for"
    "$python" -m venv --clear "$venv"
    printf '%s' "$PWD" >"$venv/.made-for"
fi

install() { "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" >&2; }

# Without isolation the build tools of the environment are used, so a rebuild is incremental and
# needs no network.
build() { PATH=$PWD/$venv/bin:$PATH "$@" --no-deps --no-build-isolation; }

# One line per requirement; first, above an empty line, those of the build.
requirements=$(
    "$venv/bin/python" - "$extras" <<'END'
import sys, tomllib

with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
project = settings["project"]
build = {*settings["build-system"]["requires"], "cmake>=3.22", "ninja"}
lines = {*project["dependencies"]}
for extra in sys.argv[1].split(","):
    lines.update(project["optional-dependencies"][extra])
print("\n".join([*sorted(build), "", *sorted(lines)]))
END
)
wanted=$requirements$'\n'$(sed 's/^/constraint /' constraints.txt)
if [[ $wanted != "$(cat "$installed" 2>/dev/null || true)" ]]; then
    say "installing what fedbench needs; the first time takes some minutes"
    touch "$unfinished"
    printf '%s\n' "$requirements" >"$venv/requirements.txt"
    printf '%s\n' "${requirements%%$'\n\n'*}" >"$venv/build-requirements.txt"
    install -q -c constraints.txt -r "$venv/build-requirements.txt"
    # pip writes packages on one processor; the extension is compiled beside it, in the folder where
    # the editable install below finds it done.
    build "$venv/bin/python" -m pip wheel -q --disable-pip-version-check -w "$venv/compiled" . >&2 &
    compiling=$!
    # pip compiles on one processor; compileall takes all, and passes over what does not compile, too.
    install --no-compile -c constraints.txt -r "$venv/requirements.txt"
    "$venv/bin/python" -m compileall -q -q -j 0 "$venv/lib" || true
    printf '%s\n' "$wanted" >"$installed"
    rm "$unfinished"
    wait "$compiling" || die "the extension could not be built; the compiler's messages are above."
    rm -r "$venv/compiled"
fi

say "building fedbench"
build install -e .
