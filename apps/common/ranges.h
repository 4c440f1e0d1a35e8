// Named ranges of time.
#pragma once

namespace apps {

class Range {
  public:
    explicit Range(const char* /*name*/) {}
    ~Range() {}
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
};

}  // namespace apps
