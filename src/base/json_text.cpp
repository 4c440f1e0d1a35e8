#include "base/json_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace awaken {

namespace {

/// Length of the well-formed UTF-8 sequence at the start of `text`, or 0.
std::size_t sequence_length(const std::string_view text) noexcept {
    struct Kind {
        unsigned char lead_mask, lead;
        std::uint32_t least;  ///< a smaller number has a shorter form
    };
    constexpr std::array<Kind, 4> kForms = {
        {{0x80, 0x00, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}}};
    const auto lead = static_cast<unsigned char>(text.front());
    for (std::size_t extra = 0; extra < kForms.size(); ++extra) {
        const Kind& form = kForms[extra];
        if ((lead & form.lead_mask) != form.lead) {
            continue;
        }
        if (text.size() <= extra) {
            return 0;
        }
        std::uint32_t point = lead & static_cast<unsigned char>(~form.lead_mask);
        for (std::size_t i = 1; i <= extra; ++i) {
            const auto byte = static_cast<unsigned char>(text[i]);
            if ((byte & 0xC0) != 0x80) {
                return 0;
            }
            point = point << 6 | (byte & 0x3F);
        }
        const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
        return point >= form.least && point <= 0x10FFFF && !surrogate ? extra + 1 : 0;
    }
    return 0;
}

}  // namespace

std::string json_string(const std::string_view text) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string result = "\"";
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = sequence_length(text.substr(i));
        const auto byte = static_cast<unsigned char>(text[i]);
        if (length == 0) {
            result += "\\ufffd";
        } else if (byte == '"' || byte == '\\') {
            result += '\\';
            result += text[i];
        } else if (byte < 0x20 || byte == 0x7F) {
            result += "\\u00";
            result += kDigits[byte >> 4];
            result += kDigits[byte & 0xF];
        } else {
            result.append(text, i, length);
        }
        i += length == 0 ? 1 : length;
    }
    return result + '"';
}

Json::Json(const std::initializer_list<Member> members) : _form(Kind::object) {
    for (const Member& member : members) {
        _names.push_back(member.name);
        _values.push_back(member.value);
    }
}

Json::Json(const double value) {
    if (!std::isfinite(value)) {
        return;
    }
    // Not std::to_chars, which needs libm: this code is part of the library, which must not need it.
    std::array<char, 32> digits{};
    for (const int precision : {15, 17}) {
        std::snprintf(digits.data(), digits.size(), "%.*g", precision, value);
        if (std::strtod(digits.data(), nullptr) == value) {
            break;
        }
    }
    _text = digits.data();
    // Readers that tell integers from other numbers then see the kind.
    if (_text.find_first_of(".e") == std::string::npos) {
        _text += ".0";
    }
}

Json Json::array() {
    Json empty;
    empty._form = Kind::array;
    return empty;
}

Json& Json::operator[](const std::string_view name) {
    _form = Kind::object;
    const auto found = std::find(_names.begin(), _names.end(), name);
    if (found != _names.end()) {
        return _values[static_cast<std::size_t>(found - _names.begin())];
    }
    _names.emplace_back(name);
    return _values.emplace_back();
}

void Json::push_back(Json element) {
    _values.push_back(std::move(element));
}

std::string Json::text() const {
    if (_form == Kind::text) {
        return _text;
    }
    const bool is_object = _form == Kind::object;
    std::string result(1, is_object ? '{' : '[');
    for (std::size_t i = 0; i < _values.size(); ++i) {
        if (i != 0) {
            result += ',';
        }
        if (is_object) {
            result += json_string(_names[i]) + ':';
        }
        result += _values[i].text();
    }
    return result + (is_object ? '}' : ']');
}

}  // namespace awaken
