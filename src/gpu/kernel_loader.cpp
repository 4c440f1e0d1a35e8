// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernel_loader.h"

#include <vector>

#include "gpu/precompiled_kernels.h"

namespace awaken::gpu {

namespace {

bool ends_search(const Status& status) noexcept {
    return status.ok() || status.code == kBusy;
}

}  // namespace

const RuntimeCompiler* KernelLoader::compiler(std::string& why_not) {
    const std::scoped_lock lock(_mutex);
    if (_compiler == nullptr) {
        _compiler = _rules.make_compiler(why_not);
    }
    return _compiler.get();
}

Status KernelLoader::load(const char* const name, const char* const source, const std::string& machine,
                          const std::span<const Attempt> attempts, const Load& load, std::string& log) {
    for (const std::string& code : precompiled_kernels().code_for(source, _rules.options, machine)) {
        if (const Status status = load(code); ends_search(status)) {
            return status;
        }
    }
    std::string why_not;
    const RuntimeCompiler* const with = compiler(why_not);
    if (with == nullptr) {
        log += why_not;
        return {kUnsupported, _rules.create, "there is no run-time compiler"};
    }
    Status status;
    for (const Attempt& attempt : attempts) {
        std::vector<std::string> options{attempt.option};
        options.insert(options.end(), _rules.options.begin(), _rules.options.end());
        std::vector<std::string_view> parts{source};
        parts.insert(parts.end(), options.begin(), options.end());
        parts.emplace_back(with->identity());
        const std::string key = KernelCache::key(parts);
        std::string code;
        if (_cache.load(key, code)) {
            status = load(code);
            if (ends_search(status)) {
                return status;
            }
        }
        const RuntimeCompiler::Result compiled = with->compile(name, source, options, attempt.output, code, log);
        if (!compiled.ok()) {
            status = {compiled.code, _rules.compile, compiled.description};
            continue;
        }
        status = load(code);
        if (ends_search(status)) {
            _cache.store(key, code);
            return status;
        }
    }
    return status;
}

}  // namespace awaken::gpu
