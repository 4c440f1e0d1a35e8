// SPDX-License-Identifier: Apache-2.0
#include "base/json_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "base/printable.h"

namespace awaken {

std::string json_string(const std::string_view text) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string result = "\"";
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_length(text.substr(i));
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
