// A unit-test harness of one header: TEST(name) { CHECK(...); } and one main per program.
#pragma once

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace fedbench::testing {

struct Case {
    const char* name;
    void (*run)();
};

inline std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

struct Registrar {
    Registrar(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

struct Failure {};

inline std::string& context() {
    static std::string text;
    return text;
}

// Says what is being tried, for the message of a failure inside a loop.
template <class... Parts>
void trying(const Parts&... parts) {
    std::ostringstream stream;
    ((stream << parts << ' '), ...);
    context() = stream.str();
}

template <class... Parts>
[[noreturn]] void fail(const char* file, int line, const Parts&... parts) {
    std::ostringstream stream;
    (stream << ... << parts);
    std::fprintf(stderr, "%s:%d: %s\n", file, line, stream.str().c_str());
    if (!context().empty()) std::fprintf(stderr, "    while trying %s\n", context().c_str());
    throw Failure{};
}

inline int run_all() {
    int failed = 0;
    for (const Case& test : cases()) {
        context().clear();
        try {
            test.run();
            std::printf("ok    %s\n", test.name);
        } catch (const Failure&) {
            ++failed;
            std::printf("FAIL  %s\n", test.name);
        } catch (const std::exception& error) {
            ++failed;
            std::printf("FAIL  %s: unexpected exception: %s\n", test.name, error.what());
        }
    }
    std::printf("%zu tests, %d failed\n", cases().size(), failed);
    return failed == 0 && !cases().empty() ? 0 : 1;
}

}  // namespace fedbench::testing

#define TEST(name)                                                                   \
    static void test_##name();                                                       \
    static const fedbench::testing::Registrar registrar_##name(#name, &test_##name); \
    static void test_##name()

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) fedbench::testing::fail(__FILE__, __LINE__, "failed: " #condition); \
    } while (false)

#define CHECK_EQUAL(actual, expected)                                                 \
    do {                                                                              \
        const auto check_actual = (actual);                                           \
        const auto check_expected = (expected);                                       \
        if (!(check_actual == check_expected))                                        \
            fedbench::testing::fail(__FILE__, __LINE__, #actual " is ", check_actual, \
                                    ", expected ", check_expected);                   \
    } while (false)

// The statement must throw `type`, and its message must contain `text`.
#define CHECK_THROWS(statement, type, text)                                               \
    do {                                                                                  \
        bool check_thrown = false;                                                        \
        try {                                                                             \
            statement;                                                                    \
        } catch (const type& error) {                                                     \
            check_thrown = true;                                                          \
            if (std::string(error.what()).find(text) == std::string::npos)                \
                fedbench::testing::fail(__FILE__, __LINE__, "message is ", error.what()); \
        }                                                                                 \
        if (!check_thrown) fedbench::testing::fail(__FILE__, __LINE__, "no " #type);      \
    } while (false)

#define TEST_MAIN()                          \
    int main() {                             \
        return fedbench::testing::run_all(); \
    }
