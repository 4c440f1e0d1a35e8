// SPDX-License-Identifier: Apache-2.0
// Text in JSON (RFC 8259).
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace awaken {

/// A JSON string with its quotes. Bytes that are not UTF-8 (RFC 3629) become U+FFFD, one each.
[[nodiscard]] std::string json_string(std::string_view text);

/// A JSON value that is built to be written: {{"name", 1}, {"list", Json::array()}} is an object. Members keep the
/// order in which they are given. This class does not read JSON.
class Json {
  public:
    struct Member;

    Json() = default;  ///< null
    Json(std::initializer_list<Member> members);
    template <std::integral Number>
    Json(const Number value) {
        if constexpr (std::is_same_v<Number, bool>) {
            _text = value ? "true" : "false";
        } else {
            _text = std::to_string(value);
        }
    }
    Json(double value);  ///< null when it is not finite
    Json(const char* text) : _text(json_string(text)) {}
    Json(const std::string& text) : _text(json_string(text)) {}
    template <class Element>
    Json(const std::vector<Element>& elements) : _form(Kind::array) {
        for (const Element& element : elements) {
            push_back(element);
        }
    }
    [[nodiscard]] static Json array();

    /// A member of an object. Makes it, as null, if it was not there. A null value becomes an object.
    Json& operator[](std::string_view name);
    /// Appends to an array.
    void push_back(Json element);

    /// The value as text, in one line.
    [[nodiscard]] std::string text() const;

  private:
    enum class Kind : unsigned char { text, array, object };

    Kind _form = Kind::text;
    std::string _text = "null";
    std::vector<std::string> _names;  ///< of an object's members
    std::vector<Json> _values;        ///< of an object's members, or an array's elements
};

struct Json::Member {
    std::string name;
    Json value;
};

}  // namespace awaken
