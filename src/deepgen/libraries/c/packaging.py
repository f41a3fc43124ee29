"""How other projects find an exported library: CMake, pkg-config, and a CMake project that builds it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Without contraction, times are predicted to the last bit as Python does.
FLAGS = (
    "-O2",
    "-ffp-contract=off",
    "-std=gnu11",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Werror=implicit-function-declaration",
)
LIBRARIES = ("-ldl", "-lpthread", "-lm")


def files(name: str, version: str, abi: int, sources: Sequence[str]) -> Mapping[str, str]:
    """Paths below the exported folder, and their texts."""
    return {
        f"lib/cmake/{name}/{name}Config.cmake": _config(name, abi),
        f"lib/cmake/{name}/{name}ConfigVersion.cmake": _version(version),
        f"lib/pkgconfig/{name}.pc": _pkg_config(name, version),
        "CMakeLists.txt": _project(name, version, abi, sources),
    }


def _config(name: str, abi: int) -> str:
    return f"""# The folder may be moved: everything is found from here.
get_filename_component(_{name}_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET {name}::{name})
  add_library({name}::{name} SHARED IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
    IMPORTED_LOCATION "${{_{name}_prefix}}/lib/lib{name}.so.{abi}"
    IMPORTED_SONAME "lib{name}.so.{abi}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_{name}_prefix}}/include")
endif()
unset(_{name}_prefix)
"""


def _version(version: str) -> str:
    return f"""set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""


def _pkg_config(name: str, version: str) -> str:
    return f"""prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: {name}
Description: Tuned kernels, made by deepgen library export
Version: {version}
Libs: -L${{libdir}} -l{name}
Cflags: -I${{includedir}}
"""


def _project(name: str, version: str, abi: int, sources: Sequence[str]) -> str:
    listed = " ".join(f"src/{source}" for source in sources)
    return f"""# Builds the library of functions again, such as for another machine; the kernels stay as they are.
cmake_minimum_required(VERSION 3.13)
project({name} VERSION {version} LANGUAGES C)
include(GNUInstallDirs)
find_package(Threads REQUIRED)
add_library({name} SHARED {listed})
target_include_directories({name} PUBLIC include PRIVATE src)
target_compile_options({name} PRIVATE -std=gnu11 -fvisibility=hidden -ffp-contract=off)
target_link_libraries({name} PRIVATE Threads::Threads ${{CMAKE_DL_LIBS}} m)
set_target_properties({name} PROPERTIES SOVERSION {abi} VERSION {abi})
install(TARGETS {name} DESTINATION lib)
install(DIRECTORY include/ DESTINATION include)
install(DIRECTORY lib/{name} lib/cmake lib/pkgconfig DESTINATION lib)
"""
