// Shows the names of files above code blocks, and colours KDL, which highlight.js does not know.
(() => {
    "use strict";
    for (const code of document.querySelectorAll("pre > code[class*=language-]")) {
        // The word behind the language: ```kdl weir.kdl
        const file = [...code.classList].find((name) => /^\w[\w-]*\.\w+$/.test(name));
        if (file) {
            const caption = document.createElement("div");
            caption.className = "file";
            caption.textContent = file;
            code.closest("pre").before(caption);
        }
    }

    const escape = { begin: "\\\\." };
    hljs.registerLanguage("kdl", () => ({
        contains: [
            hljs.COMMENT("//", "$"),
            hljs.COMMENT("/\\*", "\\*/"),
            { className: "string", begin: '"', end: '"', contains: [escape] },
            { className: "literal", begin: "#(true|false|null)\\b" },
            // An option in front of its value.
            { className: "attr", begin: "[A-Za-z_][\\w-]*(?==)" },
            // The first word of a line, or behind `{` or `;`, names what follows.
            { className: "keyword", begin: "(?:^|(?<=[{;]))[ \\t]*[A-Za-z_][\\w-]*" },
            { className: "number", begin: "\\b\\d[\\d_]*(\\.\\d+)?\\b" },
        ],
    }));
    for (const code of document.querySelectorAll("code.language-kdl")) {
        hljs.highlightBlock(code);
    }
})();
