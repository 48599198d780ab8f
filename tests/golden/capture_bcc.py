# SPDX-License-Identifier: Apache-2.0
"""Captures how BCC describes C types, and where the compiler puts their members.

    sudo BCC_KERNEL_SOURCE=HEADERS /usr/bin/python3 tests/golden/capture_bcc.py

writes tests/golden/bcc-RELEASE/structs.json: by name the declaration of `struct x`, its size, what
BCC says of it, and the offset of each member that is a number, a text or an array of them.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, Final

import bcc

# Declaration of `struct x`, and its members in their order, as C designators.
STRUCTS: Final = {
    "integers": (
        (
            "struct x { char c; signed char sc; unsigned char uc; short s; unsigned short us;"
            " int i; unsigned int ui; long l; unsigned long ul; long long ll;"
            " unsigned long long ull; };"
        ),
        "c sc uc s us i ui l ul ll ull",
    ),
    "kernel_types": (
        (
            "struct x { u8 a; u16 b; u32 c; u64 d; s8 e; s16 f; s32 g; s64 h; __be16 p; __be32 q;"
            " pid_t pid; size_t sz; bool ok; dev_t dev; };"
        ),
        "a b c d e f g h p q pid sz ok dev",
    ),
    "padding": ("struct x { u8 a; u64 b; u8 c; };", "a b c"),
    "packed": ("struct x { u8 a; u64 b; u16 c; } __attribute__((packed));", "a b c"),
    "aligned": ("struct x { u8 a; u64 b __attribute__((aligned(32))); };", "a b"),
    "arrays": (
        (
            "struct x { char comm[16]; u8 mac[6]; u16 w[3]; u64 s[4]; s8 z[4]; bool ok[3];"
            " void *p[2]; char one[1]; };"
        ),
        "comm mac w s z ok p one",
    ),
    "wide": (
        "struct x { unsigned __int128 a; __int128 b[2]; u8 c; };",
        "a b c",
    ),
    "enums_and_pointers": (
        (
            "enum e { A, B }; struct x { u8 h; enum e e; void *p; int (*f)(int); "
            "const volatile u32 q; struct x *n; };"
        ),
        "h e p f q n",
    ),
    "floats": ("struct x { double d; float f; float g[2]; };", "d f g"),
    "nested": (
        "struct in { u32 a; u64 b; u8 c; }; struct x { u8 h; struct in i; u8 t; };",
        "h i.a i.b i.c t",
    ),
    "nested_array": (
        "struct in { u32 a; u8 c; char n[3]; }; struct x { u8 h; struct in i[3]; u8 t; };",
        "h i[0].a i[0].c i[0].n i[1].a i[1].c i[1].n i[2].a i[2].c i[2].n t",
    ),
    "nested_in_packed": (
        "struct in { u32 a; u64 b; }; struct x { u8 h; struct in i; } __attribute__((packed));",
        "h i.a i.b",
    ),
    "nested_aligned": (
        (
            "struct in { u32 a; } __attribute__((aligned(16)));"
            " struct x { u32 h; struct in i; u32 t; };"
        ),
        "h i.a t",
    ),
    "anonymous": (
        "struct x { u8 h; struct { u32 a; u64 b; }; struct { u16 a; } in; u8 t; };",
        "h a b in.a t",
    ),
    "typedef_struct": (
        "typedef struct { u32 a; char n[4]; } t; struct x { t q; u8 e; };",
        "q.a q.n e",
    ),
    "union": (
        "struct x { u8 h; union { u32 v4; u8 v6[16]; } a; u32 t; };",
        "h a.v4 a.v6 t",
    ),
    "anonymous_union": (
        "struct x { u8 h; union { u32 v4; u16 v6[8]; }; u32 t; };",
        "h v4 v6 t",
    ),
    "padded_union": ("struct x { union { u8 a[5]; u32 b; } u; u8 t; };", "u.a u.b t"),
    "array_of_unions": (
        "struct x { union { u8 a[5]; u32 b; } u[2]; u8 t; };",
        "u[0].a u[0].b u[1].a u[1].b t",
    ),
    "packed_in_union": (
        (
            "struct x { union { struct { u8 a; u32 b; } __attribute__((packed)) p; u8 c[3]; } u;"
            " u8 t; };"
        ),
        "u.p.a u.p.b u.c t",
    ),
    "address": (
        "#include <linux/in6.h>\nstruct x { struct in6_addr a; u32 b; };",
        "a.in6_u.u6_addr8 a.in6_u.u6_addr16 a.in6_u.u6_addr32 b",
    ),
    "own_padding": (
        "struct x { u8 h; u8 __pad_1[3]; u32 __pad; u16 pad[2]; };",
        "h __pad_1 __pad pad",
    ),
    "empty_member": ("struct in { }; struct x { u8 h; struct in i; u8 t; };", "h t"),
    "array_of_none": ("struct x { u32 a; char d[0]; };", "a"),
    # Structs that cannot be read.
    "bit_field": ("struct x { u32 a:3; u32 b:29; u64 c; };", ""),
    "nested_bit_field": ("struct x { u8 h; struct { u32 a:3; u32 b:5; } in; };", ""),
    "flexible_array": ("struct x { u32 a; char d[]; };", ""),
    "array_of_arrays": ("struct x { char a[4][16]; };", ""),
    "array_of_arrays_behind": ("struct x { u32 q; u32 a[3]; u8 b[2][6]; u32 c; };", ""),
    "array_by_typedef": ("typedef char name_t[16]; struct x { u32 a; name_t n; u32 b; };", ""),
    "vector": (
        "typedef int v4 __attribute__((vector_size(16))); struct x { v4 d; };",
        "",
    ),
    "long_double": ("struct x { u8 h; long double d; };", ""),
    "aligned_union": (
        "struct x { u8 h; union { u8 a[3]; u16 b; } __attribute__((aligned(16))) u; u8 t; };",
        "",
    ),
}
SCALARS: Final = {"scalar": "u64", "byte": "u8"}


def main() -> None:
    """Write the file."""
    for name in ("key", "leaf"):
        getattr(bcc.lib, f"bpf_table_{name}_desc_id").restype = ctypes.c_char_p
    bcc.lib.bpf_table_name.restype = ctypes.c_char_p
    found = {name: capture(*struct) for name, struct in STRUCTS.items()}
    found |= {name: capture("", "", ctype) for name, ctype in SCALARS.items()}
    release = ".".join(bcc.__version__.split(".")[:2])
    folder = Path(__file__).with_name(f"bcc-{release}")
    folder.mkdir(exist_ok=True)
    (folder / "structs.json").write_text(json.dumps(found, indent=1) + "\n")


def capture(declaration: str, members: str, ctype: str = "struct x") -> dict[str, Any]:
    """Compile tables of the type; their sizes tell offsets."""
    names = members.split()
    tables = [f"BPF_ARRAY(x, {ctype}, 1);"]
    tables += [
        f"BPF_ARRAY(o{index}, u8, offsetof(struct x, {name}) + 1);"
        for index, name in enumerate(names)
    ]
    module = bcc.BPF(text="\n".join([declaration, *tables]) + "\n").module
    ids = {
        bcc.lib.bpf_table_name(module, index).decode(): index
        for index in range(bcc.lib.bpf_num_tables(module))
    }
    return {
        "declaration": declaration,
        "size": bcc.lib.bpf_table_leaf_size_id(module, ids["x"]),
        "description": json.loads(bcc.lib.bpf_table_leaf_desc_id(module, ids["x"])),
        "offsets": {
            name: bcc.lib.bpf_table_max_entries_id(module, ids[f"o{index}"]) - 1
            for index, name in enumerate(names)
        },
    }


if __name__ == "__main__":
    main()
