// SPDX-License-Identifier: Apache-2.0
// The integers of kernels by their bits: run-time compilers have no <cstdint>.
#pragma once

namespace awaken::kernels {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

}  // namespace awaken::kernels
