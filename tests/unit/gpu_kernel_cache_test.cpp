// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gpu/runtime_compiler.h"

namespace awaken::gpu {
namespace {

namespace fs = std::filesystem;

class KernelCacheTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = ::testing::TempDir() + "kernel_cache_XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        _root = pattern;
    }
    void TearDown() override {
        fs::permissions(_root, fs::perms::owner_all);
        fs::remove_all(_root);
    }
    [[nodiscard]] std::string directory() const { return _root + "/a/awaken/kernels"; }
    [[nodiscard]] std::string file(const std::string& key) const { return directory() + "/" + key + ".bin"; }

    static std::string key_of(std::string_view first, std::string_view second) {
        const std::string_view parts[] = {first, second};
        return KernelCache::key(parts);
    }
    /// Whether the cache gives `expected` back; anything else than that or nothing is a failure.
    static bool holds(const KernelCache& cache, const std::string& key, const std::string& expected) {
        std::string code = "untouched";
        if (!cache.load(key, code)) {
            EXPECT_EQ(code, "untouched");
            return false;
        }
        EXPECT_EQ(code, expected);
        return true;
    }

    std::string _root;
    const std::string _key = key_of("source", "options");
    const std::string _code = std::string("machine\0code", 12) + std::string(5000, 'x');
};

TEST_F(KernelCacheTest, GivesBackWhatWasStored) {
    const KernelCache cache(directory());
    EXPECT_FALSE(holds(cache, _key, _code));
    cache.store(_key, _code);
    EXPECT_TRUE(holds(cache, _key, _code));
    EXPECT_TRUE(holds(KernelCache(directory() + "/"), _key, _code));
    EXPECT_FALSE(holds(cache, key_of("source", "other options"), _code));
    cache.store(_key, "newer");
    EXPECT_TRUE(holds(cache, _key, "newer"));
}

TEST_F(KernelCacheTest, DirectoryAndFilesAreTheUsersAlone) {
    KernelCache(directory()).store(_key, _code);
    struct stat status = {};
    ASSERT_EQ(::stat(directory().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0700U);
    ASSERT_EQ(::stat(file(_key).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory()), fs::directory_iterator()),
              1);  // no temporary file left
}

TEST_F(KernelCacheTest, AHomeThatIsNotThereIsNotMade) {
    const KernelCache cache(_root + "/home/.cache/awaken/kernels");
    cache.store(_key, _code);
    EXPECT_FALSE(holds(cache, _key, _code));
    EXPECT_FALSE(fs::exists(_root + "/home"));
    fs::create_directory(_root + "/home");
    cache.store(_key, _code);
    EXPECT_TRUE(holds(cache, _key, _code));
}

TEST_F(KernelCacheTest, KeysTellEveryPartAndItsBoundsApart) {
    EXPECT_EQ(_key.size(), 32U);
    EXPECT_EQ(_key, key_of("source", "options"));
    EXPECT_NE(_key, key_of("sourceo", "ptions"));
    EXPECT_NE(_key, key_of("options", "source"));
    EXPECT_NE(_key, key_of("source", "optionS"));
}

TEST_F(KernelCacheTest, DamagedFilesCountAsAbsentAndAreReplaced) {
    const KernelCache cache(directory());
    cache.store(_key, _code);
    const auto size = fs::file_size(file(_key));
    const auto flip_at = [&](std::uintmax_t at) {
        std::fstream stream(file(_key), std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(static_cast<std::streamoff>(at));
        const char byte = static_cast<char>(stream.get());
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put(static_cast<char>(byte ^ 1));
    };
    for (const std::uintmax_t at :
         {std::uintmax_t{0}, std::uintmax_t{10}, std::uintmax_t{41}, std::uintmax_t{50}, size - 1}) {
        flip_at(at);
        EXPECT_FALSE(holds(cache, _key, _code)) << "byte " << at;
        cache.store(_key, _code);
        EXPECT_TRUE(holds(cache, _key, _code));
    }
    for (const std::uintmax_t length : {std::uintmax_t{0}, std::uintmax_t{20}, size - 1}) {
        fs::resize_file(file(_key), length);
        EXPECT_FALSE(holds(cache, _key, _code)) << "length " << length;
        cache.store(_key, _code);
        EXPECT_TRUE(holds(cache, _key, _code));
    }
    // A whole file under another's name.
    const std::string other = key_of("another", "kernel");
    fs::copy_file(file(_key), file(other));
    EXPECT_FALSE(holds(cache, other, _code));
}

TEST_F(KernelCacheTest, FilesThatOthersCouldHaveWrittenAreNotTrusted) {
    const KernelCache cache(directory());
    cache.store(_key, _code);
    ASSERT_EQ(::chmod(file(_key).c_str(), 0620), 0);
    EXPECT_FALSE(holds(cache, _key, _code));
    ASSERT_EQ(::chmod(file(_key).c_str(), 0602), 0);
    EXPECT_FALSE(holds(cache, _key, _code));
    ASSERT_EQ(::chmod(file(_key).c_str(), 0600), 0);
    EXPECT_TRUE(holds(cache, _key, _code));
    if (::geteuid() == 0) {
        ASSERT_EQ(::chown(file(_key).c_str(), 12345, 12345), 0);
        EXPECT_FALSE(holds(cache, _key, _code));
        fs::remove(file(_key));
    }
    cache.store(_key, _code);

    fs::rename(file(_key), file(_key) + ".real");
    fs::create_symlink(file(_key) + ".real", file(_key));
    EXPECT_FALSE(holds(cache, _key, _code));
    fs::remove(file(_key));
    ASSERT_EQ(::mkfifo(file(_key).c_str(), 0600), 0);  // must not hang either
    EXPECT_FALSE(holds(cache, _key, _code));
}

TEST_F(KernelCacheTest, DirectoriesThatOthersCanWriteToAreNotUsed) {
    const KernelCache cache(directory());
    cache.store(_key, _code);
    ASSERT_EQ(::chmod(directory().c_str(), 0777), 0);
    EXPECT_FALSE(holds(cache, _key, _code));
    const std::string other = key_of("another", "kernel");
    cache.store(other, _code);
    EXPECT_FALSE(fs::exists(file(other)));
    ASSERT_EQ(::chmod(directory().c_str(), 0700), 0);
    EXPECT_TRUE(holds(cache, _key, _code));

    fs::create_directory_symlink(directory(), _root + "/link");
    EXPECT_FALSE(holds(KernelCache(_root + "/link"), _key, _code));
}

TEST_F(KernelCacheTest, WithoutAHomeNothingIsCachedAndNothingFails) {
    const KernelCache none{std::string()};
    none.store(_key, _code);
    EXPECT_FALSE(holds(none, _key, _code));

    std::ofstream(_root + "/file") << "not a directory";
    const KernelCache impossible(_root + "/file/kernels");
    impossible.store(_key, _code);
    EXPECT_FALSE(holds(impossible, _key, _code));
}

TEST_F(KernelCacheTest, LiesWhereTheEnvironmentSays) {
    const auto restore = [](const char* name, const char* old) {
        if (old != nullptr) {
            ::setenv(name, old, 1);
        } else {
            ::unsetenv(name);
        }
    };
    const char* const home = std::getenv("HOME");
    const std::string old_home = home != nullptr ? home : "";
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const std::string old_cache = cache != nullptr ? cache : "";
    ::setenv("HOME", "/home/user", 1);
    ::unsetenv("XDG_CACHE_HOME");
    EXPECT_EQ(KernelCache().directory(), "/home/user/.cache/awaken/kernels");
    ::setenv("XDG_CACHE_HOME", "/var/cache/user", 1);
    EXPECT_EQ(KernelCache().directory(), "/var/cache/user/awaken/kernels");
    ::setenv("XDG_CACHE_HOME", "relative", 1);
    EXPECT_EQ(KernelCache().directory(), "/home/user/.cache/awaken/kernels");
    ::unsetenv("HOME");
    EXPECT_EQ(KernelCache().directory(), "");
    restore("HOME", home != nullptr ? old_home.c_str() : nullptr);
    restore("XDG_CACHE_HOME", cache != nullptr ? old_cache.c_str() : nullptr);
}

TEST_F(KernelCacheTest, ReadersNeverSeeHalfAFile) {
    const KernelCache cache(directory());
    const std::string first(200000, 'a');
    const std::string second(100000, 'b');
    cache.store(_key, first);
    std::vector<std::thread> writers;
    for (const std::string* const code : {&first, &second}) {
        writers.emplace_back([&, code] {
            for (int i = 0; i < 100; ++i) {
                cache.store(_key, *code);
            }
        });
    }
    for (int i = 0; i < 200; ++i) {
        std::string code;
        ASSERT_TRUE(cache.load(_key, code));
        ASSERT_TRUE(code == first || code == second);
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
}

}  // namespace
}  // namespace awaken::gpu
