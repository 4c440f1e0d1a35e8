// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace awaken {
namespace {

constexpr std::size_t kExcerptBytes = 80;

}  // namespace

std::size_t utf8_length(const std::string_view text) noexcept {
    const auto byte = [text](const std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) {
        return 1;
    }
    std::size_t length = 0;
    unsigned char second_low = 0x80, second_high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
        length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        length = 3;
        if (lead == 0xE0) {
            second_low = 0xA0;  // no overlong forms
        }
        if (lead == 0xED) {
            second_high = 0x9F;  // no surrogates
        }
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        length = 4;
        if (lead == 0xF0) {
            second_low = 0x90;
        }
        if (lead == 0xF4) {
            second_high = 0x8F;
        }
    }
    if (length == 0 || text.size() < length || byte(1) < second_low || byte(1) > second_high) {
        return 0;
    }
    for (std::size_t i = 2; i < length; ++i) {
        if (byte(i) < 0x80 || byte(i) > 0xBF) {
            return 0;
        }
    }
    return length;
}

std::string printable(const std::string_view text) {
    std::string result;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_length(text.substr(i));
        const auto byte = static_cast<unsigned char>(text[i]);
        const bool c1_control = length == 2 && byte == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
        if (length == 0 || byte < 0x20 || byte == 0x7F || c1_control) {
            for (std::size_t j = 0; j < std::max<std::size_t>(length, 1); ++j) {
                std::array<char, 5> escaped{};
                std::snprintf(escaped.data(), escaped.size(), "\\x%02X",
                              static_cast<unsigned>(static_cast<unsigned char>(text[i + j])));
                result += escaped.data();
            }
        } else {
            result.append(text, i, length);
        }
        i += std::max<std::size_t>(length, 1);
    }
    return result;
}

std::string printable_lines(std::string_view text) {
    std::string result;
    for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
        result += printable(text.substr(0, end)) + '\n';
        text.remove_prefix(end + 1);
    }
    return result + printable(text);
}

std::string excerpt(const std::string_view text) {
    // Whole characters only.
    std::size_t end = 0;
    while (end < text.size() && end < kExcerptBytes) {
        end += std::max<std::size_t>(utf8_length(text.substr(end)), 1);
    }
    return printable(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

}  // namespace awaken
