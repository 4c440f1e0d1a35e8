// SPDX-License-Identifier: Apache-2.0
#include "gpu/dynamic_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace awaken::gpu {
namespace {

TEST(LibraryName, KnowsTheFormsInUse) {
    EXPECT_TRUE(is_library_named("libcuda.so", "libcuda"));
    EXPECT_TRUE(is_library_named("/usr/lib/libcuda.so.1", "libcuda"));
    EXPECT_TRUE(is_library_named("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", "libcuda"));
    EXPECT_TRUE(is_library_named("/venv/torch/lib/libamdhip64-1a2b3c4d.so", "libamdhip64"));
    EXPECT_TRUE(is_library_named("./libamdhip64-0f.so.6.2", "libamdhip64"));
}

TEST(LibraryName, IsNotFooledByRelatives) {
    EXPECT_FALSE(is_library_named("/usr/lib/libcudart.so.12", "libcuda"));
    EXPECT_FALSE(is_library_named("/usr/lib/libcuda-gdb.so", "libcuda"));
    EXPECT_FALSE(is_library_named("/usr/lib/libcuda-.so", "libcuda"));
    EXPECT_FALSE(is_library_named("/usr/lib/libcuda.a", "libcuda"));
    EXPECT_FALSE(is_library_named("/usr/lib/libcuda.sorted", "libcuda"));
    EXPECT_FALSE(is_library_named("/libcuda.so.1/libm.so.6", "libcuda"));
    EXPECT_FALSE(is_library_named("/usr/lib/mylibcuda.so", "libcuda"));
    EXPECT_FALSE(is_library_named("libcuda", "libcuda"));
    EXPECT_FALSE(is_library_named("", "libcuda"));
}

TEST(DynamicLibrary, FillsATableAndNamesWhatIsMissing) {
    std::string why_not;
    const std::string paths[] = {"libnot-there-at-all.so.77", "libm.so.6"};
    const DynamicLibrary library = DynamicLibrary::open(paths, why_not);
    ASSERT_TRUE(library) << why_not;
    EXPECT_NE(library.path().find("libm"), std::string::npos);

    void* cosine = nullptr;
    void* optional = library.find("cos");
    const FunctionSlot complete[] = {{"cos", &cosine, true}, {"no_such_function", &optional, false}};
    EXPECT_TRUE(library.bind(complete, why_not));
    EXPECT_NE(cosine, nullptr);
    EXPECT_EQ(optional, nullptr);

    const FunctionSlot lacking[] = {
        {"no_such_function", &optional, true}, {"cos", &cosine, true}, {"nor_this", &optional, true}};
    EXPECT_FALSE(library.bind(lacking, why_not));
    EXPECT_NE(why_not.find("lacks no_such_function, nor_this"), std::string::npos) << why_not;
    EXPECT_NE(why_not.find(library.path()), std::string::npos) << why_not;
    EXPECT_EQ(dlerror(), nullptr);  // the program's view of the loader is unchanged
}

TEST(DynamicLibrary, SaysWhyNothingOpens) {
    std::string why_not;
    const std::string paths[] = {"libnot-there.so.1", "/nor/there.so"};
    EXPECT_FALSE(DynamicLibrary::open(paths, why_not));
    EXPECT_NE(why_not.find("libnot-there.so.1"), std::string::npos) << why_not;
    EXPECT_NE(why_not.find("/nor/there.so"), std::string::npos) << why_not;
    EXPECT_FALSE(DynamicLibrary::open_loaded("libnot-there.so.1"));
}

TEST(LoadedObjects, TheCounterMovesWhenALibraryIsLoaded) {
    const unsigned long long before = loaded_object_counter();
    EXPECT_GT(before, 0U);
    EXPECT_EQ(loaded_object_counter(), before);
    // A small library of the C library's that nothing else uses.
    const std::string name = "libanl.so.1";
    EXPECT_FALSE(DynamicLibrary::open_loaded(name));
    ASSERT_NE(dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL), nullptr) << dlerror();
    EXPECT_GT(loaded_object_counter(), before);
    const std::vector<std::string> paths = loaded_object_paths();
    const auto found = std::find_if(paths.begin(), paths.end(),
                                    [](const std::string& path) { return is_library_named(path, "libanl"); });
    ASSERT_NE(found, paths.end());
    EXPECT_TRUE(DynamicLibrary::open_loaded(*found));
}

}  // namespace
}  // namespace awaken::gpu
